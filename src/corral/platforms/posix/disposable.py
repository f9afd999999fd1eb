"""Try an operation in a child process, and get the result as text.

The child ends afterwards, so the operation changes nothing in corral's own process.
"""

from __future__ import annotations

import os
import select
import sys

from corral.abi.signal_numbers import SIGKILL
from corral.plan.host import Finding

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_SILENCE_SECONDS = 20
"""A probe that writes nothing for this long has failed."""
END = b"\0"
"""Ends an answer, which may be an error. If several processes answer, only the first answer counts,
because later errors are consequences of the first one.
"""


def probe(capability: str, attempt: Callable[[], str], hint: str = "") -> Finding:
    """Return the finding for `capability`: "proven" if `attempt` returns without an error.

    Otherwise the finding is "absent", and contains `hint`.
    """
    proven, evidence = observe(attempt)
    if proven:
        return Finding(capability=capability, status="proven", evidence=evidence)
    return Finding(capability=capability, status="absent", evidence=evidence, hint=hint)


def observe(attempt: Callable[[], str]) -> tuple[bool, str]:
    """Run `attempt` in a forked child. Return whether it succeeded, and the text that it returned
    or the message of its error.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            os.close(read)
            words = f"+{attempt()}"
        except BaseException as error:  # noqa: BLE001 - the parent needs every error
            words = f"-{error}"
        try:
            # `attempt` may fork. If an error is raised in such a child process, that process writes
            # here too. It writes before this process, because this process waits for it.
            os.write(write, words.encode(errors="replace")[:4095] + END)
        finally:
            os._exit(0)
    os.close(write)
    answer = _read(read)
    if answer is None:
        os.killpg(pid, SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if not answer:
        return False, f"the probe died (wait status {status})"
    first = answer.partition(END.decode())[0]
    return first[0] == "+", first[1:]


def _read(fd: int) -> str | None:
    """Return everything that is written to the pipe until all processes have closed its other end.

    Return None if nothing is written for MAX_SILENCE_SECONDS.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    found = b""
    with open(fd, "rb", buffering=0) as pipe:
        while poll.poll(MAX_SILENCE_SECONDS * 1000):
            chunk = pipe.read(4096)
            if not chunk:
                return found.decode()
            found += chunk
    return None


def refused(attempt: Callable[[], object], *, by: type[OSError] = OSError) -> str:
    """Call `attempt`, which the system must refuse. Return the message of the error.

    Raise RuntimeError if `attempt` succeeds. Only an error of the class `by` counts as a refusal.
    Any other error is raised.
    """
    try:
        attempt()
    except by as error:
        return error.strerror or str(error)
    raise RuntimeError("an operation that should have been denied succeeded")


def fork_once() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
