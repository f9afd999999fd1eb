"""A child process to try things in: what it saw comes back as text, and nothing of it is left."""

from __future__ import annotations

import sys

import os

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable


def observe(attempt: Callable[[], str]) -> tuple[bool, str]:
    """Run `attempt` in a fork: (whether it returned, its words or those of its error)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            answer = f"+{attempt()}"
        except BaseException as error:  # noqa: BLE001 - the parent wants to know, whatever it is
            answer = f"-{error}"
        try:
            os.write(write, answer.encode(errors="replace")[:4096])
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        answer = pipe.read().decode()
    status = os.waitpid(pid, 0)[1]
    if not answer:
        return False, f"the probe died (wait status {status})"
    return answer[0] == "+", answer[1:]


def refused(attempt: Callable[[], object]) -> str:
    """The error with which an act is refused; an act that succeeds is the failure here."""
    try:
        attempt()
    except OSError as error:
        return error.strerror or str(error)
    raise RuntimeError("the act that should have been denied succeeded")
