"""Define the plan of a run as plain data: its steps, and what enforces each control."""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal, Protocol, TypeVar

    from corral.policy.model import Control, Mcp
    from corral.programs.model import Program

    Kind = TypeVar("Kind")
    Stage = Literal["supervisor", "clone", "after_clone", "init", "target"]
    Enforcement = Literal["verified", "applied", "cooperative", "degraded", "not asked"]
    Ungranted = tuple[Literal["path", "unix_socket", "address", "variable"], str, str]
    Chains = Mapping[Control, Sequence["Option"]]

    class Step(Protocol):
        """Plain data that describes, applies and verifies one part of the sandbox.

        `apply` may add values to the results, for use by later steps. `verify` runs inside the
        sandbox, just before the target starts. If a step's effect cannot be checked, its `verify`
        is `unverified`.
        """

        @property
        def name(self) -> str: ...
        @property
        def stage(self) -> Stage: ...
        def describe(self) -> str: ...
        def apply(self, results: Results, /) -> None: ...
        def verify(self, results: Results, /) -> None: ...


class Results:
    """The values that the steps of one run have produced so far, at most one of each type.

    If a value has a method `release`, the method frees the value's resources on the host.
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
            raise OSError(0, f"no earlier step made a {kind.__name__}")
        return value

    def release(self) -> None:
        """Release all values, newest first.

        Ignore OSErrors, because a later run removes the leftovers. Raise any other error after all
        values have been released.
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
NOTIFICATION = "notification"
UNIX_SCOPE = "unix scope"
"""Part of the names of mechanisms that deny connections to unix sockets created outside the
sandbox.
"""


@record
class Option:
    """A mechanism that could enforce a control.

    `needs` lists the capabilities that the mechanism needs. `status` is the control's status if
    this option is chosen. `refused` says why the system cannot enforce the value in the policy.
    `switch` is true if the option enforces nothing because the user switched the control off.
    """

    mechanism: str
    needs: tuple[str, ...] = ()
    status: Enforcement = "applied"
    note: str = ""
    refused: str = ""
    switch: bool = False


@record
class Held:
    """The decision about one control.

    If the control is not enforced, `mechanism` is "" and `why` is the reason. Otherwise `why` is a
    note about the mechanism.
    """

    control: Control
    asked: str
    stated: bool
    mechanism: str
    status: Enforcement
    why: str = ""


@record
class Sample:
    """Limits that the supervisor enforces by sampling, in the units of the policy. Sampling means
    to measure the usage again and again.
    """

    memory: int | None = None
    cpu: int | None = None
    cpu_time: int | None = None
    pids: int | None = None


@record
class Cover:
    """A path in the granted directory `top` that is hidden from the target or read-only for it.

    The protection lasts only while the path refers to the file with this `device` and `inode`.
    `repository` is true for a version-control directory. If such a directory loses its protection,
    the run ends, even if `Covers.strict` is false.
    """

    path: str
    device: int
    inode: int
    top: str
    directory: bool
    repository: bool = False


@record
class Covers:
    """The covered paths to watch during a run.

    If `strict` is true, the run ends when any of these paths loses its protection.
    """

    names: tuple[Cover, ...]
    strict: bool = False


@record
class Composition:
    """A backend's part of the plan.

    - `environment` contains the environment variables that every target gets on this system.
    - `home` is the target's home. The target starts there if no other directory is given.
    - `run` is the unique name of the run.
    - `residue` lists the paths that remain on the host if corral crashes.
    - `watched` lists missing files that the host would execute on its own, and that the target can
      create. After the run, corral reports those that exist.
    - `controls` lists controls to show beside those of the policy.
    - `start_in` is the directory to start in if the target cannot use the program's own directory.
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
    start_in: str = ""


@record
class Plan:
    """The steps that enforce a policy on this host, and the decision for each control.

    - `environment` may contain secrets, so it is never printed.
    - `requested_names` lists the environment variables whose values, or at least whose names, the
      server chose.
    - `given_values` lists the user's secrets in the server's settings.
    - `ungranted` lists paths and names in the command that are not granted, as (kind, name, flag
      that would grant it).
    - `mcp` contains the settings of the MCP guard, or None without a guard.
    - `pins` lists the pinned definitions as (kind, name, definition), or is None if definitions are
      not compared with pins.
    - `pinned_as` is the key under which the pins of this server are stored.
    - `private_streams` lists the standard streams that no other program has, as numbers, because
      the Python API made them for this run.
    """

    program: Program
    steps: tuple[Step, ...]
    controls: tuple[Held, ...]
    environment: tuple[tuple[str, str], ...]
    secret_names: tuple[str, ...] = ()
    requested_names: tuple[str, ...] = ()
    given_values: tuple[str, ...] = ()
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
    ungranted: tuple[Ungranted, ...] = ()
    mcp: Mcp | None = None
    pins: tuple[tuple[str, str, str], ...] | None = None
    pinned_as: tuple[str, ...] = ()
    private_streams: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
