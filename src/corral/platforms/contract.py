"""Define the contract between corral and its backends, one for each operating system.

A backend is a module or object with the functions of `Backend`. Code that differs between operating
systems is in the backends.
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
    """The gateway (None if the policy allows no host) and the other services to run."""

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

            Only the capabilities in `wanted` have to be probed; the others may be "unknown". An
            empty `wanted` means all capabilities.
            """

        def rehearse(self, plan: Plan) -> None:
            """Do the one-time work that would otherwise slow down the plan's first run."""

        def find_spare_maker(self, plan: Plan) -> SpareMaker | None:
            """Return a function that sets up a sandbox before its command is known (a spare), or
            None if this is not possible for the plan.
            """

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
        """Lets the supervisor control a process tree."""

        pid: int
        # Becomes readable when the tree has ended. On Windows this is a handle that is signalled
        # when the tree's first process has ended.
        pidfd: int
        # The supervisor reads EXECUTED or the error of a failed step from this pipe. On systems
        # where `spawn` itself raises the error, this is -1.
        exec_pipe: int

        # These services run from the start of the child. The services from `open_services` run only
        # after the target's exec.
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
            """Wait for a command on the channel. Return False if this sandbox cannot be used."""

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
        """Signals that were sent to corral itself and are waiting to be read."""

        def fileno(self) -> int: ...
        def read(self) -> list[int]: ...

    class Service(Protocol):
        """Does work for a sandbox during a run, such as forwarding its network connections.

        The run's `Watcher` calls `run_ready` when `fileno` is ready or `deadline` has passed. A
        service that does its work in its own threads may return -1 as `fileno`. `close` is called
        after the target has ended.
        """

        def fileno(self) -> int: ...
        def deadline(self) -> float | None: ...
        def run_ready(self) -> None: ...
        def close(self) -> None: ...

    class Gateway(Service, Protocol):
        def traffic(self) -> Mapping[str, Traffic]: ...


@record
class Usage:
    cpu: float = 0.0  # seconds of CPU time, including reaped children
    memory: int = 0  # bytes
    tasks: int = 0  # threads, or processes on Windows
    certain: int = 0  # bytes that are certainly in use; `memory` is an estimate
    steady: bool = True  # False if processes started during an exact measurement


@record
class Moment:
    at_ms: int  # milliseconds since the start of the process tree
    cpu_ms: int  # the CPU time that the tree has used so far
    memory: int
    tasks: int


@record
class Reaped:
    status: int | None  # the wait status, or None if the target was killed with its tree
    cpu: float  # seconds
    memory: int  # the peak, in bytes
    tasks: int = 0
    hit: tuple[str, ...] = ()  # limits that the target reached, as the system reports them
    restored: tuple[str, ...] = ()  # a line for each change to a standard stream's file or terminal
    discarded: tuple[Discarded, ...] = ()  # files that were lost with the private directories
    discarded_whole: bool = True  # False if the list of discarded files is incomplete
    timeline: tuple[Moment, ...] = ()  # empty unless a limit was sampled


@record
class Ending:
    """How a run ended.

    `replaced` contains a sentence for each path that lost its protection because a process on the
    host replaced the file.
    """

    reaped: Reaped
    reason: StopReason  # empty unless the supervisor ended the run
    wall: float  # the duration in seconds
    denials: tuple[Denial, ...] = ()
    traffic: tuple[tuple[str, Traffic], ...] = ()
    replaced: tuple[str, ...] = ()
