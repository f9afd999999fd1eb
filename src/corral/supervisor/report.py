"""The report of a run: what was asked, what was enforced, and how the run ended."""

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
"""By signal, the share of the CPU limit that must be used for the signal to be the limit's.

The kernel kills by ticks and accounts by the clock; on a busy machine ticks run ahead by a fifth.
SIGXCPU has hardly another cause; SIGKILL comes a second after the limit and has many.
"""


@record
class Outcome:
    kind: Kind
    exit_code: int
    signal: int | None = None
    detail: str = ""


@record
class Usage:
    """`memory` is the peak of the tree where the tree is counted, else of the largest process."""

    wall_ms: int = 0
    cpu_ms: int = 0
    memory: int = 0
    tasks: int = 0


@record
class Report:
    """`hit` names limits that were reached, fatal or not; `created` are new files that programs of
    the user run by themselves.
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


def build_report(plan: Plan, ending: Ending) -> Report:
    return Report(
        command=masked(plan.program.typed or plan.program.argv),
        outcome=find_outcome(plan, ending),
        controls=plan.controls,
        usage=Usage(
            wall_ms=int(ending.wall * 1000),
            cpu_ms=int(ending.reaped.cpu * 1000),
            memory=ending.reaped.memory,
            tasks=ending.reaped.tasks,
        ),
        hit=_limits_hit(plan, ending),
        denials=ending.denials,
        traffic=ending.traffic,
        created=tuple(path for path in plan.watched if os.path.lexists(path)),
        warnings=(*plan.warnings, *ending.replaced, *ending.reaped.restored),
    )


def build_refusal(
    command: tuple[str, ...], error: SandboxError, *, kind: Kind = "refused"
) -> Report:
    outcome = Outcome(kind=kind, exit_code=error.exit_code, detail=error.message)
    return Report(command=masked(command), outcome=outcome)


def find_outcome(plan: Plan, ending: Ending) -> Outcome:
    status = ending.reaped.status
    if ending.reason == "timeout":
        return Outcome(kind="timeout", exit_code=EXIT_TIMEOUT)
    number = SIGKILL if status is None else status & 0x7F  # WTERMSIG, which Windows has not
    if not number:
        code = (status or 0) >> 8
        # A process that Windows refuses memory crashes, and the exit code says only that.
        crashed = code >> 31 and "memory" in ending.reaped.hit
        return Outcome(kind="memory" if crashed else "exited", exit_code=code)
    kind = _fatal_limit(plan, ending, number)
    return Outcome(kind=kind, exit_code=SIGNALLED + number, signal=number)


def _fatal_limit(plan: Plan, ending: Ending, number: int) -> Kind:
    """Return the limit that a fatal signal came from, or "signalled"."""
    if ending.reason == "memory" or ("memory" in ending.reaped.hit and number == SIGKILL):
        return "memory"
    if ending.reason == "cpu_time" or _is_cpu_time_used(plan, ending, number):
        return "cpu_time"
    return "pids" if ending.reason == "pids" else "signalled"


def _is_cpu_time_used(plan: Plan, ending: Ending, number: int) -> bool:
    """Return whether the CPU time is used up. RLIMIT_CPU counts whole seconds."""
    if plan.cpu_time is None or ending.reason or number not in ROUNDING:
        return False
    return ending.reaped.cpu * 1000 >= plan.cpu_time * ROUNDING[number]


def _limits_hit(plan: Plan, ending: Ending) -> tuple[str, ...]:
    """Return every limit that was reached, fatal or not."""
    kind = find_outcome(plan, ending).kind
    fatal = (kind,) if kind in {"timeout", "memory", "cpu_time", "pids"} else ()
    return tuple(dict.fromkeys((*fatal, *ending.reaped.hit)))


def to_json(item: object) -> object:
    """Return records as the dictionaries and lists that JSON has."""
    if hasattr(item, "__match_args__"):
        return {name: to_json(getattr(item, name)) for name in fields(item)}
    if isinstance(item, tuple | list):
        return [to_json(entry) for entry in item]
    return item


def write(report: Report, fd: int) -> None:
    """Write to `fd`, which was opened before the launch and without following links."""
    import json

    with open(fd, "w", encoding="utf-8") as file:
        json.dump(to_json(report), file, indent=2)
        file.write("\n")
