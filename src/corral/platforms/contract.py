"""Define the contract that every operating system's backend fulfils: its Protocols and records.

A backend is a module or an object with the functions of `Backend`. No other part of corral asks
which system it runs on to decide what to enforce.
"""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Literal, Protocol

    from corral.denials.records import Denial, Denials, Discarded
    from corral.network.traffic import Traffic
    from corral.plan.host import Finding, Host
    from corral.plan.model import Chains, Composition, Covers, Held, Plan, Sample
    from corral.platforms.run_records import Budget, Run
    from corral.policy.model import Grant, Policy
    from corral.programs.model import Program

    Stdio = tuple[int, int, int]
    StopReason = Literal["", "timeout", "memory", "cpu_time", "pids", "signal", "control"]
    NetworkServices = tuple["Gateway | None", Sequence["Service"]]
    """The gateway, which is None if the policy allows no network, and all other services."""

    SpareMaker = Callable[[], "Spare"]

    class Backend(Protocol):
        __file__: str | None

        def resolve(
            self,
            argv: Sequence[str],
            *,
            environment: Mapping[str, str],
            cwd: str,
            home: str,
            subprocess: bool,
            grants: Sequence[Grant],
            root: str,
        ) -> Program: ...
        def chains(self, policy: Policy) -> Chains: ...
        def compose(
            self, policy: Policy, program: Program, controls: Sequence[Held], *, home: str
        ) -> Composition: ...
        def warm_up(self) -> None: ...
        def clean(self, path: str, budget: Budget) -> None: ...
        def measure(self, root: int) -> Usage: ...
        def probe(self, wanted: Collection[str] = (), /) -> tuple[Finding, ...]:
            """Return a finding for every capability.

            Capabilities that are not in `wanted` may be "unknown", because they were not tried.
            """

        def rehearse(self, plan: Plan) -> None:
            """Do the one-time work that would slow down the first run of a plan."""

        def find_spare_maker(self, plan: Plan) -> SpareMaker | None:
            """Return a maker of spare sandboxes, or None if this plan cannot use a spare."""

        def cache_key(self) -> tuple[str, ...]: ...
        def doctor(self, host: Host) -> Sequence[tuple[str, str, Finding | None]]: ...
        def signals(self, numbers: Sequence[int]) -> Signals: ...
        def spawn(self, plan: Plan, stdio: Stdio) -> Child: ...
        def watch(
            self,
            child: Child,
            *,
            timeout: float | None,
            signals: Signals,
            control: int,
            sample: Sample | None,
            run: Run,
        ) -> Watcher: ...

    class Child(Protocol):
        """The supervisor's handle of a process tree. `pidfd` becomes readable when the tree ends.
        `exec_pipe` carries a failed step, or EXECUTED. It is -1 if spawning reports errors
        directly. The watcher runs `services` from the start, and all other services once the
        target has executed.
        """

        pid: int
        pidfd: int
        exec_pipe: int

        @property
        def services(self) -> Sequence[Service]: ...
        def target(self) -> int: ...
        def signal(self, number: int) -> None: ...
        def kill(self) -> None: ...
        def measure(
            self, *, exact: bool = False, interrupted: Callable[[], bool] = ...
        ) -> Usage: ...
        def preload(self) -> None: ...
        def report_to(self, denials: Denials, plan: Plan) -> None: ...
        def open_services(self, plan: Plan, denials: Denials) -> NetworkServices: ...
        def watch_covers(self, covers: Covers) -> Service: ...
        def reap(self) -> Reaped: ...

    class Spare(Protocol):
        """A sandbox that is set up and verified, and waits for its command."""

        def wait(self, channel: int) -> bool:
            """Wait for a request on the channel. Return False if this sandbox cannot be used."""

        def is_current(self) -> bool: ...
        def take(self, plan: Plan, stdio: Stdio) -> Child: ...
        def discard(self) -> None: ...

    class Watcher(Protocol):
        """Watches a target until it has ended."""

        child: Child

        @property
        def reason(self) -> StopReason: ...
        def until_exec(self) -> bytes: ...
        def until_end(self, preload: Callable[[], None] | None = None) -> Ending: ...
        def open(
            self, denials: Denials, gateway: Gateway | None, others: Sequence[Service]
        ) -> None: ...

    class Signals(Protocol):
        """Signals that corral itself received, waiting to be read."""

        def fileno(self) -> int: ...
        def read(self) -> list[int]: ...

    class Service(Protocol):
        """Passes bytes into or out of a sandbox, driven by the watcher's loop.

        A service with its own threads has a `fileno` of -1. `close` is called after the target's
        end.
        """

        def fileno(self) -> int: ...
        def deadline(self) -> float | None: ...
        def run_ready(self) -> None: ...
        def close(self) -> None: ...

    class Gateway(Service, Protocol):
        def traffic(self) -> Mapping[str, Traffic]: ...


@record
class Usage:
    """The usage of a tree: CPU seconds including reaped children, bytes of memory, and tasks.

    Tasks are threads; on Windows they are processes.
    """

    cpu: float = 0.0
    memory: int = 0
    tasks: int = 0


@record
class Moment:
    """A sample of a tree's usage, `at_ms` milliseconds after the tree's start. `cpu_ms` is the CPU
    time that the tree has used so far.
    """

    at_ms: int
    cpu_ms: int
    memory: int
    tasks: int


@record
class Reaped:
    """The result of an ended tree. `status` is None if the target was killed with its tree.

    `hit` names the limits that the kernel reported as reached. `cpu` is in seconds; `memory` is a
    peak. `restored` has a line for each change that was undone on the files behind the streams.
    `discarded` are the lost files of the private space; `discarded_whole` is False if the list is
    cut off.
    `timeline` is empty unless a limit was sampled.
    """

    status: int | None
    cpu: float
    memory: int
    tasks: int = 0
    hit: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    discarded: tuple[Discarded, ...] = ()
    discarded_whole: bool = True
    timeline: tuple[Moment, ...] = ()


@record
class Ending:
    """How a run ended. `reason` is empty unless the supervisor ended the run. `replaced` has a
    sentence for each path that stopped being hidden or read-only, because the host replaced it.
    """

    reaped: Reaped
    reason: StopReason
    wall: float
    denials: tuple[Denial, ...] = ()
    traffic: tuple[tuple[str, Traffic], ...] = ()
    replaced: tuple[str, ...] = ()
