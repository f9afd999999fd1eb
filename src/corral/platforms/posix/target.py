"""Run the last steps before a process becomes the target, on all POSIX systems."""

from __future__ import annotations

import os
import sys

from corral.platforms import steps
from corral.platforms.steps import END, EXECUTED, FAILED, StepFailed

if sys.platform != "win32":
    # Imported before the sandbox exists, because the sandbox may hide the standard library.
    import fcntl

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import NoReturn

    from corral.plan.model import Plan, Results
    from corral.platforms.contract import Stdio
    from corral.programs.model import Program

DESCRIPTORS = "/dev/fd"
UMASK = 0o022


def arrange_streams(stdio: Stdio, *pipes: int) -> list[int]:
    """Make the three streams the descriptors 0, 1 and 2.

    Return duplicates of `pipes`, because a stream may replace a pipe that has one of these numbers.
    """
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 16) for fd in (*stdio, *pipes)]
    for number, fd in enumerate(high[:3]):
        os.dup2(fd, number)
    return high[3:]


def close_on_exec() -> None:
    """Make exec close every descriptor except the three streams, on systems without close_range."""
    for fd in _open_descriptors():
        if fd > 2:
            os.set_inheritable(fd, False)


def close_others(keep: Container[int]) -> None:
    """Close every descriptor except those in `keep`, on systems without close_range.

    To find the descriptors, list those that are open, because closing every possible number would
    take a million calls.
    """
    for fd in _open_descriptors():
        if fd not in keep:
            os.close(fd)


def _open_descriptors() -> list[int]:
    found = []
    for name in os.listdir(DESCRIPTORS):
        try:
            os.fstat(int(name))
        except OSError:
            continue
        found.append(int(name))
    return found


def enter(
    plan: Plan,
    results: Results,
    start: int,
    exec_pipe: int,
    request: Callable[[int], Plan] | None = None,
) -> Plan:
    """Apply the target's steps, verify all steps, wait for the byte on `start`, and then report
    EXECUTED. Exit if `start` is closed without a byte.

    Return the plan to execute. This is `plan`, unless the sandbox was set up before its command was
    known. In that case call `request`, which waits for the command and returns its plan.
    """
    os.setsid()
    os.umask(UMASK)
    os.chdir(plan.program.cwd or "/")
    steps.apply(plan.steps, "target", results)
    steps.verify(plan.steps, results)
    # Wait for `start` only now, after the steps. Init sends the byte when it has locked itself
    # down, which it can do on another processor while this process applies the steps.
    if os.read(start, 1) != b"\0":
        os._exit(1)  # the process that watches the target has ended
    if request is not None:
        plan = request(exec_pipe)
    os.write(exec_pipe, EXECUTED)
    return plan


def execute(program: Program, execve: Callable[[], None]) -> NoReturn:
    try:
        steps.check_same_program(program)
        execve()
    except OSError as error:
        raise StepFailed("exec", OSError(error.errno, error.strerror, program.path)) from error
    raise StepFailed("exec", "returned")


def tell(exec_pipe: int, error: BaseException, where: str) -> NoReturn:
    """Write the failed step and its error to the exec pipe, then exit. `where` is the step if
    `error` does not name one.
    """
    if isinstance(error, OSError):
        error = StepFailed(where, error)
    elif not isinstance(error, StepFailed):
        error = StepFailed(where, f"{type(error).__name__}: {error}")
    words = (error.step, str(error.code), error.cause)
    try:
        text = "".join(word.replace(END, " ") + END for word in words)
        os.write(exec_pipe, FAILED + text.encode(errors="replace"))
    finally:
        os._exit(1)
