"""Asked, enforced, degraded, and how it ended."""

from __future__ import annotations

from corral.errors import EXIT_TIMEOUT
from corral.posix.signals import SIGKILL, SIGXCPU
from corral.record import fields, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from corral.errors import SandboxError
    from corral.plan import Held, Plan
    from corral.supervise import Ending

    Kind = Literal[
        "exited", "signalled", "timeout", "memory", "cpu_time", "pids", "refused", "setup_failed"
    ]

SIGNALLED = 128


@record
class Outcome:
    kind: Kind
    exit_code: int
    signal: int | None = None
    detail: str = ""


@record
class Usage:
    wall_ms: int = 0
    cpu_ms: int = 0
    max_rss: int = 0


@record
class Report:
    command: tuple[str, ...]
    outcome: Outcome
    controls: tuple[Held, ...] = ()
    usage: Usage = Usage()
    warnings: tuple[str, ...] = ()
    denials: tuple[str, ...] = ()


def of(plan: Plan, ending: Ending) -> Report:
    return Report(
        command=plan.program.typed or plan.program.argv,
        outcome=outcome(plan, ending),
        controls=plan.controls,
        usage=Usage(
            wall_ms=int(ending.wall * 1000), cpu_ms=int(ending.cpu * 1000), max_rss=ending.max_rss
        ),
        warnings=plan.warnings,
    )


def refusal(command: tuple[str, ...], error: SandboxError, *, kind: Kind = "refused") -> Report:
    outcome = Outcome(kind=kind, exit_code=error.exit_code, detail=error.message)
    return Report(command=command, outcome=outcome)


def outcome(plan: Plan, ending: Ending) -> Outcome:
    if ending.reason == "timeout":
        return Outcome(kind="timeout", exit_code=EXIT_TIMEOUT)
    if ending.status is None:
        return Outcome(kind="signalled", exit_code=SIGNALLED + SIGKILL, signal=SIGKILL)
    number = ending.status & 0x7F  # WTERMSIG, which Python has only where there are signals
    if not number:
        return Outcome(kind="exited", exit_code=ending.status >> 8)
    kind: Kind = "cpu_time" if _spent(plan, ending, number) else "signalled"
    return Outcome(kind=kind, exit_code=SIGNALLED + number, signal=number)


def _spent(plan: Plan, ending: Ending, number: int) -> bool:
    asked = any(held.control == "cpu_time" and held.asked for held in plan.controls)
    return asked and number in {SIGXCPU, SIGKILL} and not ending.reason


def plain(item: object) -> object:
    """Records as JSON sees them."""
    if hasattr(item, "__match_args__"):
        return {name: plain(getattr(item, name)) for name in fields(item)}
    if isinstance(item, tuple | list):
        return [plain(entry) for entry in item]
    return item


def write(report: Report, fd: int) -> None:
    """`fd` was opened before the launch, without following links: nobody can redirect it since."""
    import json

    with open(fd, "w", encoding="utf-8") as file:
        json.dump(plain(report), file, indent=2)
        file.write("\n")
