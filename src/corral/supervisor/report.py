"""Asked, enforced, degraded, and how it ended."""

from __future__ import annotations

import os

from corral.abi.signal_numbers import SIGKILL, SIGXCPU
from corral.errors import EXIT_TIMEOUT
from corral.policy.variables import masked
from corral.record import fields, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from corral.denials.records import Denial
    from corral.errors import SandboxError
    from corral.network.traffic import Traffic
    from corral.plan.model import Held, Plan
    from corral.platforms.contract import Ending

    Kind = Literal[
        "exited", "signalled", "timeout", "memory", "cpu_time", "pids", "refused", "setup_failed"
    ]

SIGNALLED = 128
ROUNDING = {SIGXCPU: 0.5, SIGKILL: 0.9}
"""Shares of the limit that must have been used for a signal to be the limit's.

The kernel kills by ticks and accounts by the clock; on a busy machine ticks run ahead by a fifth.
Hardly anybody else sends SIGXCPU; SIGKILL comes a second after the limit and from many.
"""


@record
class Outcome:
    kind: Kind
    exit_code: int
    signal: int | None = None
    detail: str = ""


@record
class Usage:
    """`memory` is the tree's peak where it is counted, else the largest process's."""

    wall_ms: int = 0
    cpu_ms: int = 0
    memory: int = 0
    tasks: int = 0


@record
class Report:
    """`hit` names limits that were reached, fatal or not; `created` what runs by itself from now
    on.
    """

    command: tuple[str, ...]
    outcome: Outcome
    controls: tuple[Held, ...] = ()
    usage: Usage = Usage()
    warnings: tuple[str, ...] = ()
    hit: tuple[str, ...] = ()
    created: tuple[str, ...] = ()
    denials: tuple[Denial, ...] = ()
    traffic: tuple[tuple[str, Traffic], ...] = ()


def of(plan: Plan, ending: Ending) -> Report:
    return Report(
        command=masked(plan.program.typed or plan.program.argv),
        outcome=outcome(plan, ending),
        controls=plan.controls,
        usage=Usage(
            wall_ms=int(ending.wall * 1000),
            cpu_ms=int(ending.reaped.cpu * 1000),
            memory=ending.reaped.memory,
            tasks=ending.reaped.tasks,
        ),
        hit=_hit(plan, ending),
        denials=ending.denials,
        traffic=ending.traffic,
        created=tuple(path for path in plan.watched if os.path.lexists(path)),
        warnings=plan.warnings,
    )


def refusal(command: tuple[str, ...], error: SandboxError, *, kind: Kind = "refused") -> Report:
    outcome = Outcome(kind=kind, exit_code=error.exit_code, detail=error.message)
    return Report(command=masked(command), outcome=outcome)


def outcome(plan: Plan, ending: Ending) -> Outcome:
    status = ending.reaped.status
    if ending.reason == "timeout":
        return Outcome(kind="timeout", exit_code=EXIT_TIMEOUT)
    number = SIGKILL if status is None else status & 0x7F  # WTERMSIG, which Windows has not
    if not number:
        code = (status or 0) >> 8
        # Where memory that is not given ends a process, Windows' own code tells of a crash.
        crashed = code >> 31 and "memory" in ending.reaped.hit
        return Outcome(kind="memory" if crashed else "exited", exit_code=code)
    kind = _killer(plan, ending, number)
    return Outcome(kind=kind, exit_code=SIGNALLED + number, signal=number)


def _killer(plan: Plan, ending: Ending, number: int) -> Kind:
    """Which limit a fatal signal came from, if from any."""
    if ending.reason == "memory" or ("memory" in ending.reaped.hit and number == SIGKILL):
        return "memory"
    if ending.reason == "cpu_time" or _spent(plan, ending, number):
        return "cpu_time"
    return "pids" if ending.reason == "pids" else "signalled"


def _spent(plan: Plan, ending: Ending, number: int) -> bool:
    """RLIMIT_CPU counts whole seconds, so a limit within a second is reached at its end."""
    if plan.cpu_time is None or ending.reason or number not in ROUNDING:
        return False
    return ending.reaped.cpu * 1000 >= plan.cpu_time * ROUNDING[number]


def _hit(plan: Plan, ending: Ending) -> tuple[str, ...]:
    """Every limit that was reached, fatal or not."""
    kind = outcome(plan, ending).kind
    fatal = (kind,) if kind in {"timeout", "memory", "cpu_time", "pids"} else ()
    return tuple(dict.fromkeys((*fatal, *ending.reaped.hit)))


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
