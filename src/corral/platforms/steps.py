"""Apply the steps of one stage in order; a failure names its step and ends the run.

The same code serves the command line, the zygote and the probes, so what was proven is what is run.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from corral.plan.model import Results, Stage, Step

EXECUTED = b"S"
FAILED = b"F"
DIED = "died before it was executed"


class StepFailed(Exception):  # noqa: N818 - a result on its way out of a child
    """A step of the walls failed: nothing after it may happen."""

    def __init__(self, step: str, cause: OSError | str) -> None:
        super().__init__(f"{step}: {cause}")
        self.step = step
        self.code = cause.errno or 0 if isinstance(cause, OSError) else 0
        self.cause = _format_os_error(cause) if isinstance(cause, OSError) else cause


def apply(steps: Iterable[Step], stage: Stage, results: Results) -> None:
    for step in steps:
        if step.stage == stage:
            attempt(step, step.apply, results)


def verify(steps: Iterable[Step], results: Results) -> None:
    """Try every wall from inside, as its mechanism knows how, just before the target starts."""
    for step in steps:
        attempt(step, step.verify, results)


def attempt(step: Step, verb: Callable[[Results], None], results: Results) -> None:
    try:
        verb(results)
    except OSError as error:
        raise StepFailed(step.name, error) from error


def unverified(_step: object, _results: Results) -> None:
    """`verify` of a step without an effect of its own that could be tried from inside."""


def parse_exec_result(raw: bytes) -> StepFailed | None:
    """Read what a child wrote on its way to exec; None is a successful exec."""
    if raw == EXECUTED:
        return None
    if FAILED in raw:
        step, code, cause = raw.partition(FAILED)[2].decode().split("\0", 2)
        failed = StepFailed(step, cause)
        failed.code = int(code)
        return failed
    return StepFailed("target", DIED)


def keep_only(keep: Iterable[int]) -> None:
    """Close every descriptor but these."""
    low = 0
    for fd in sorted(keep):
        if low < fd:  # an empty range from 0 would mean everything
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 20)


def _format_os_error(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{text} ({error.filename})" if error.filename else text
