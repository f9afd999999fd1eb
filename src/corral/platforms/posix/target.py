"""The last steps of a process that becomes the target, as far as every POSIX system has them."""

from __future__ import annotations

import os
import sys

from corral.platforms.steps import FAILED, StepFailed

if sys.platform != "win32":
    # Here and not at the point of use: behind walls the standard library may be out of sight.
    import fcntl

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Container
    from typing import NoReturn

    from corral.programs.model import Program

DESCRIPTORS = "/dev/fd"


def arrange(stdio: tuple[int, int, int], *pipes: int) -> list[int]:
    """The three streams on 0 to 2, everything else closed on exec; the pipes where they are now."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 16) for fd in (*stdio, *pipes)]
    for number, fd in enumerate(high[:3]):
        os.dup2(fd, number)
    for fd in _open_descriptors():
        if fd > 2:
            os.set_inheritable(fd, False)
    return high[3:]


def close_others(keep: Container[int]) -> None:
    """Close every descriptor but these. Not by counting: a system without close_range would be
    called a million times.
    """
    for fd in _open_descriptors():
        if fd not in keep:
            os.close(fd)


def _open_descriptors() -> list[int]:
    """Without the one that the list was read by."""
    found = []
    for name in os.listdir(DESCRIPTORS):
        try:
            os.fstat(int(name))
        except OSError:
            continue
        found.append(int(name))
    return found


def check_same(program: Program) -> None:
    """What is about to be executed is what was resolved, whoever could write there since."""
    if program.inode:
        seen = os.stat(program.path)
        if (seen.st_dev, seen.st_ino) != (program.device, program.inode):
            raise OSError(0, "is no longer the program that was resolved")


def tell(born: int, error: BaseException, where: str) -> NoReturn:
    """A failed step goes out as data, and this process with it."""
    if isinstance(error, StepFailed):
        step, code, cause = error.step, error.code, error.cause
    else:
        step, code, cause = where, 0, f"{type(error).__name__}: {error}"
    try:
        os.write(born, FAILED + "\0".join((step, str(code), cause)).encode(errors="replace"))
    finally:
        os._exit(1)
