"""The contract between the flow and an operating system: every Protocol and record of the seam.

A backend is a module or an object with the verbs of `Backend`. Nothing else in corral asks which
system it runs on in order to decide what to enforce.
"""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal, Protocol

    from corral.denials.records import Denial, Denials
    from corral.network.traffic import Traffic
    from corral.plan.host import Finding, Host
    from corral.plan.model import Chains, Composition, Covers, Held, Plan, Sample
    from corral.platforms.run_records import Budget, Run
    from corral.policy.model import Grant, Policy
    from corral.programs.model import Program

    Stdio = tuple[int, int, int]
    StopReason = Literal["", "timeout", "memory", "cpu_time", "pids", "signal", "control"]
    NetworkServices = tuple["Gateway | None", Sequence["Service"]]
    """The gateway for what the policy allows, if it allows anything, and all other services."""

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
        def probe(self) -> tuple[Finding, ...]: ...
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
        """The supervisor's hold on a running tree. `pidfd` becomes readable at its end;
        `exec_pipe` carries a failed step, or EXECUTED, and is -1 where spawning reports directly.
        """

        pid: int
        pidfd: int
        exec_pipe: int

        def target(self) -> int: ...
        def signal(self, number: int) -> None: ...
        def kill(self) -> None: ...
        def measure(
            self, *, exact: bool = False, interrupted: Callable[[], bool] = ...
        ) -> Usage: ...
        def network_services(self, plan: Plan, denials: Denials | None) -> NetworkServices: ...
        def watch_covers(self, covers: Covers) -> Service: ...
        def reap(self) -> Reaped: ...

    class Watcher(Protocol):
        """Stays with a target until it has ended."""

        child: Child

        @property
        def reason(self) -> StopReason: ...
        def until_exec(self) -> bytes: ...
        def until_end(self) -> Ending: ...
        def open(self, gateway: Gateway | None, others: Sequence[Service]) -> None: ...

    class Signals(Protocol):
        """Signals to corral itself, waiting to be read."""

        def fileno(self) -> int: ...
        def read(self) -> list[int]: ...

    class Service(Protocol):
        """Passes bytes in or out of a sandbox, driven by the watcher's loop."""

        def fileno(self) -> int: ...
        def deadline(self) -> float | None: ...
        def run_ready(self) -> None: ...
        def close(self) -> None: ...

    class Gateway(Service, Protocol):
        denials: Denials

        def traffic(self) -> Mapping[str, Traffic]: ...


@record
class Usage:
    """What a tree uses: CPU seconds with those of reaped children, bytes, and threads (on Windows
    processes).
    """

    cpu: float = 0.0
    memory: int = 0
    tasks: int = 0


@record
class Reaped:
    """`status` is the target's wait status, None when it was killed with its tree.

    `hit` names limits that the kernel says were reached; `cpu` is in seconds, `memory` a peak.
    `restored` has a line for each thing that was put back on the files behind the streams.
    """

    status: int | None
    cpu: float
    memory: int
    tasks: int = 0
    hit: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()


@record
class Ending:
    """`exec_result` is what the exec pipe carried; `reason` is why the supervisor ended the run,
    empty if it did not. `replaced` has a sentence for each covered name that lost its cover.
    """

    exec_result: bytes
    reaped: Reaped
    reason: StopReason
    wall: float
    denials: tuple[Denial, ...] = ()
    traffic: tuple[tuple[str, Traffic], ...] = ()
    replaced: tuple[str, ...] = ()
