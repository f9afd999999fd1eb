"""Apply and verify the steps of a plan in order.

If a step fails, the error names the step, and the run ends. The probes apply their steps with the
same code as a run, so a run does what the probes have tried.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from corral.plan.model import Results, Stage, Step
    from corral.programs.model import Program

EXECUTED = b"S"
WAITS = b"W"
"""A sandbox that is set up before its command is known sends this byte once all its steps are
verified, and then waits for the command.
"""
FAILED = b"F"
END = "\0"
"""Ends each of the three words of a failure: its step, its errno and its cause."""
DIED = "died before it was executed"


class HintedError(OSError):
    """An error with a hint for the user. The step that fails sets `hint` and raises the error."""

    hint = ""


class StepFailed(Exception):  # noqa: N818 - carries a result out of a child process
    def __init__(self, step: str, cause: OSError | str) -> None:
        super().__init__(f"{step}: {cause}")
        self.step = step
        self.code = cause.errno or 0 if isinstance(cause, OSError) else 0
        self.place = str(cause.filename or "") if isinstance(cause, OSError) else ""
        self.hint = cause.hint if isinstance(cause, HintedError) else ""
        self.cause = _format_os_error(cause) if isinstance(cause, OSError) else cause


def apply(steps: Iterable[Step], stage: Stage, results: Results) -> None:
    for step in steps:
        if step.stage == stage:
            attempt(step, step.apply, results)


def verify(steps: Iterable[Step], results: Results) -> None:
    """Test every step's effect just before the target runs. On Windows the tests run outside the
    sandbox, while the target is suspended. Elsewhere they run inside.
    """
    for step in steps:
        attempt(step, step.verify, results)


def attempt(step: Step, verb: Callable[[Results], None], results: Results) -> None:
    try:
        verb(results)
    except OSError as error:
        raise StepFailed(step.name, error) from error


def unverified(_step: object, _results: Results) -> None:
    """The `verify` of a step whose effect is not tested before exec."""


def parse_exec_result(raw: bytes) -> StepFailed | None:
    """Return the failure that a child wrote to the exec pipe, or None if exec succeeded."""
    if raw == EXECUTED:
        return None
    if FAILED in raw:
        # If init and the target both wrote an error, return the first one, because the second is a
        # consequence of it.
        step, code, cause = raw.partition(FAILED)[2].decode().split(END, 3)[:3]
        failed = StepFailed(step, cause)
        failed.code = int(code)
        return failed
    return StepFailed("target", DIED)


def check_same_program(program: Program) -> None:
    """Raise OSError if the program's file was replaced since corral resolved its path."""
    if program.inode:
        seen = os.stat(program.path)
        if (seen.st_dev, seen.st_ino) != (program.device, program.inode):
            raise OSError(0, "the file was replaced after corral had found it", program.path)


def keep_only(keep: Iterable[int]) -> None:
    """Close every descriptor of this process except those in `keep`."""
    low = 0
    for fd in sorted(keep):
        if low < fd:  # os.closerange(0, 0) would close every descriptor
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 20)


def _format_os_error(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{text} ({error.filename})" if error.filename else text
