"""Apply the steps of one place in order; a failure names its step and ends the run.

The same code serves the command line, the zygote and the probes, so what was proven is what is run.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.plan.model import Place, Step


EXECUTED = b"S"
FAILED = b"F"


DIED = "died before it was executed"


class StepFailed(Exception):  # noqa: N818 - what happened, as data on its way out
    """A step of the walls failed: nothing after it may happen."""

    def __init__(self, step: str, cause: OSError | str) -> None:
        super().__init__(f"{step}: {cause}")
        self.step = step
        self.code = cause.errno or 0 if isinstance(cause, OSError) else 0
        self.cause = _words(cause) if isinstance(cause, OSError) else cause


class Scene:
    """What steps hand to later steps of the same run: descriptors by the path they stand for."""

    def __init__(self) -> None:
        self.trees: dict[str, int] = {}
        self.sources: dict[str, int] = {}
        self.namespaces: dict[str, str] = {}
        self.pid = 0
        self.cgroup = ""
        self.directory = ""
        self.doors: tuple[int, ...] = ()
        self.kept: tuple[int, ...] = ()
        self.port = 0
        self.password = ""
        self.variables: tuple[tuple[str, str], ...] = ()
        self.windows: tuple[int, ...] = ()
        self.inlets: dict[int, int] = {}
        self.handles: tuple[int, ...] = ()
        self.cookie: tuple[int, int, int] = (0, 0, 0)


def name(step: Step) -> str:
    return f"{type(step).__module__.rpartition('.')[2]}.{type(step).__name__}"


def apply(steps: Iterable[Step], place: Place, scene: Scene) -> None:
    for step in steps:
        if step.place == place:
            _attempt("apply", step, scene)


def verify(steps: Iterable[Step], scene: Scene) -> None:
    """Try every wall from inside, as its mechanism knows how, just before the target starts."""
    for step in steps:
        if hasattr(sys.modules[type(step).__module__], "verify"):
            _attempt("verify", step, scene)


def _attempt(verb: str, step: Step, scene: Scene) -> None:
    try:
        getattr(sys.modules[type(step).__module__], verb)(step, scene)
    except OSError as error:
        raise StepFailed(name(step), error) from error


def _words(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{text} ({error.filename})" if error.filename else text


def read_born(raw: bytes) -> StepFailed | None:
    """What a child said on its way to exec, read to its end: None is a successful exec."""
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
