"""A child process to try things in: what it saw comes back as text, and nothing of it is left."""

from __future__ import annotations

import os
import select
import sys

from corral.abi.signal_numbers import SIGKILL

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable


PATIENCE = 20_000
"""Milliseconds without a word after which a probe has failed, whatever it waits for."""


def observe(attempt: Callable[[], str]) -> tuple[bool, str]:
    """Run `attempt` in a fork: (whether it returned, its words or those of its error)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            os.close(read)
            words = f"+{attempt()}"
        except BaseException as error:  # noqa: BLE001 - the parent wants to know, whatever it is
            words = f"-{error}"
        try:
            os.write(write, words.encode(errors="replace")[:4096])
        finally:
            os._exit(0)
    os.close(write)
    answer = _read(read)
    if answer is None:
        os.killpg(pid, SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if not answer:
        return False, f"the probe died (wait status {status})"
    return answer[0] == "+", answer[1:]


def _read(fd: int) -> str | None:
    """Until every holder of the other end is gone, but not for ever."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    found = b""
    with open(fd, "rb", buffering=0) as pipe:
        while poll.poll(PATIENCE):
            chunk = pipe.read(4096)
            if not chunk:
                return found.decode()
            found += chunk
    return None


def refused(attempt: Callable[[], object], *, by: type[OSError] = OSError) -> str:
    """The error with which an act is refused; an act that succeeds is the failure here, and so is
    another error than `by`: something else kept it from being done.
    """
    try:
        attempt()
    except by as error:
        return error.strerror or str(error)
    raise RuntimeError("the act that should have been denied succeeded")
