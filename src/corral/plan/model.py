"""The plan of a run: its steps, and what enforces each control. Plain data."""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal, Protocol, TypeVar

    from corral.policy.model import Control
    from corral.programs.model import Program

    Kind = TypeVar("Kind")
    Stage = Literal["supervisor", "clone", "after_clone", "init", "target"]
    Enforcement = Literal["verified", "applied", "cooperative", "degraded", "not asked"]
    Chains = Mapping[Control, Sequence["Option"]]

    class Step(Protocol):
        """Plain data that describes, applies and verifies one part of the walls.

        `apply` may put what it made into the results, for the steps after it. `verify` runs inside,
        just before the target starts; a step without an effect to try has `verify = unverified`.
        """

        @property
        def name(self) -> str: ...
        @property
        def stage(self) -> Stage: ...
        def describe(self) -> str: ...
        def apply(self, results: Results, /) -> None: ...
        def verify(self, results: Results, /) -> None: ...


class Results:
    """What the steps of one run have made so far, at most one value of each type.

    The mechanism that makes a value defines its type, and later steps ask for it by that type. A
    value that holds something of the host has a method `release`, which gives it back.
    """

    def __init__(self) -> None:
        self._values: dict[type, object] = {}

    def add(self, value: object) -> None:
        self._values[type(value)] = value

    def find(self, kind: type[Kind]) -> Kind | None:
        return self._values.get(kind)  # type: ignore[return-value]

    def get(self, kind: type[Kind]) -> Kind:
        value = self.find(kind)
        if value is None:
            raise OSError(0, f"no step before this one made a {kind.__name__}")
        return value

    def release(self) -> None:
        """Give back everything, the newest first; what resists is left to the next sweep. An error
        that is not an OSError is raised after everything else was given back.
        """
        while self._values:
            _, value = self._values.popitem()
            release: Callable[[], None] | None = getattr(value, "release", None)
            if release is None:
                continue
            try:
                release()
            except OSError:
                continue
            except BaseException:
                self.release()
                raise


SAMPLING = "sampling"


@record
class Option:
    """One mechanism that enforces a control, what it needs proven, and the status it then has."""

    mechanism: str
    needs: tuple[str, ...] = ()
    status: Enforcement = "applied"
    note: str = ""


@record
class Held:
    """What enforces one control in this run, if anything does."""

    control: Control
    asked: str
    stated: bool
    mechanism: str
    status: Enforcement
    why: str = ""


@record
class Sample:
    """Limits that the supervisor enforces by sampling, in the units of the policy."""

    memory: int | None = None
    cpu: int | None = None
    cpu_time: int | None = None
    pids: int | None = None


@record
class Cover:
    """A name in the grant `top` that is hidden or read-only for the target while `device` and
    `inode` are under it. The end of a `repository`'s cover always ends the run.
    """

    path: str
    device: int
    inode: int
    top: str
    directory: bool
    repository: bool = False


@record
class Covers:
    """The names to watch during a run. `strict`: the end of any cover ends the run."""

    names: tuple[Cover, ...]
    strict: bool = False


@record
class Composition:
    """A backend's part of the plan: the steps, the variables that every target has here, the
    directory to start in if no other is given, and what a crash would leave behind.

    `watched` are names in write grants that run by themselves on the host once they exist. They do
    not exist yet and cannot be blocked; those that exist after the run are reported. `controls` are
    rows beside those that the policy asks for.
    """

    steps: tuple[Step, ...]
    environment: tuple[tuple[str, str], ...]
    home: str
    run: str
    residue: tuple[str, ...] = ()
    watched: tuple[str, ...] = ()
    covers: Covers | None = None
    controls: tuple[Held, ...] = ()
    warnings: tuple[str, ...] = ()


@record
class Plan:
    """`environment` may hold secrets: it is handed to the target and never printed."""

    program: Program
    steps: tuple[Step, ...]
    controls: tuple[Held, ...]
    environment: tuple[tuple[str, str], ...]
    secret_names: tuple[str, ...] = ()
    timeout: int | None = None
    cpu_time: int | None = None
    sample: Sample | None = None
    allow: tuple[str, ...] = ()
    admit: tuple[str, ...] = ()
    listen: tuple[int, ...] = ()
    run: str = ""
    residue: tuple[str, ...] = ()
    watched: tuple[str, ...] = ()
    covers: Covers | None = None
    warnings: tuple[str, ...] = ()
