"""Make the report of a run: what was requested, what was enforced, and how the run ended."""

from __future__ import annotations

import os

from corral.abi.signal_numbers import SIGKILL, SIGXCPU
from corral.errors import EXIT_TIMEOUT
from corral.policy.variables import masked
from corral.record import fields, record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from corral.denials.records import Denial, Discarded
    from corral.errors import SandboxError
    from corral.network.traffic import Traffic
    from corral.plan.model import Held, Plan
    from corral.platforms.contract import Ending, Moment

    Kind = Literal[
        "exited", "signalled", "timeout", "memory", "cpu_time", "pids", "refused", "setup_failed"
    ]

JSON_VERSION = 1
"""The version of the JSON that `report`, `explain`, `doctor` and `demo` write. schemas/ describes
it.
"""
SIGNALLED = 128
NOT_ENOUGH_QUOTA = 1816
"""The exit code of the processes in a Windows job that has used up its user-mode time."""
ROUNDING = {SIGXCPU: 0.5, SIGKILL: 0.9}
"""For each signal, the share of the CPU limit that a target must have used before corral assumes
that the limit caused the signal.

The reported CPU time may be below the limit even though the limit was reached. To enforce the
limit, the kernel counts ticks, which are up to a fifth ahead of the reported time on a busy
machine. SIGXCPU rarely has a different cause, so half is enough. SIGKILL comes a second after the
limit and has many other causes.
"""


@record
class Outcome:
    """How a target ended. `kind` is a word such as `exited`, `signalled` or `timeout`."""

    kind: Kind
    exit_code: int
    signal: int | None = None
    detail: str = ""


@record
class Usage:
    """The resources that a run used. `memory` is the peak of the whole process tree if the tree was
    measured, and otherwise the peak of the largest process.
    """

    wall_ms: int = 0
    cpu_ms: int = 0
    memory: int = 0
    tasks: int = 0


@record
class Report:
    """The requests, controls and resource usage of one run.

    `hit` names all limits that were reached, even those that did not end the target. `created`
    lists files that did not exist before the run, and that the user's programs would execute
    without being asked, such as a git hook. `discarded` lists the files in the private directories,
    which are removed after a run. `discarded_whole` is true if `discarded` is complete. `timeline`
    is empty unless the run was sampled.
    """

    command: tuple[str, ...]
    outcome: Outcome
    controls: tuple[Held, ...] = ()
    usage: Usage = Usage()
    warnings: tuple[str, ...] = ()
    hit: tuple[str, ...] = ()
    created: tuple[str, ...] = ()
    denials: tuple[Denial, ...] = ()
    discarded: tuple[Discarded, ...] = ()
    discarded_whole: bool = True
    traffic: tuple[tuple[str, Traffic], ...] = ()
    timeline: tuple[Moment, ...] = ()


def build_report(plan: Plan, ending: Ending) -> Report:
    """Return the report of a run. Secrets are masked in the names that the target chose."""
    discarded, traffic = ending.reaped.discarded, ending.traffic
    if discarded or traffic:
        from corral.supervisor.secret_values import hide_values

        hide = hide_values(plan)
        discarded = tuple(replace(row, path=hide(row.path)[0]) for row in discarded)
        traffic = tuple((hide(name)[0], seen) for name, seen in traffic)
    created, closed = _find_created(plan.watched)
    outcome = find_outcome(plan, ending)
    fatal = (outcome.kind,) if outcome.kind in {"timeout", "memory", "cpu_time", "pids"} else ()
    return Report(
        command=masked(plan.program.typed or plan.program.argv),
        outcome=outcome,
        controls=plan.controls,
        usage=Usage(
            wall_ms=int(ending.wall * 1000),
            cpu_ms=int(ending.reaped.cpu * 1000),
            memory=ending.reaped.memory,
            tasks=ending.reaped.tasks,
        ),
        hit=tuple(dict.fromkeys((*fatal, *ending.reaped.hit))),
        denials=ending.denials,
        discarded=discarded,
        discarded_whole=ending.reaped.discarded_whole,
        traffic=traffic,
        timeline=ending.reaped.timeline,
        created=created,
        warnings=(*plan.warnings, *ending.replaced, *ending.reaped.restored, *closed),
    )


def _find_created(paths: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the paths that exist, and a warning for each directory that corral cannot search.

    The target runs as the same user, so it can remove the permissions of a directory after creating
    files in it. corral then cannot see these files.
    """
    found: list[str] = []
    closed: dict[str, None] = {}
    for path in paths:
        try:
            os.lstat(path)
            found.append(path)
        except PermissionError:
            directory = os.path.dirname(path)
            while not os.path.lexists(directory):
                directory = os.path.dirname(directory)
            closed[directory] = None
        except OSError:
            continue  # it does not exist
    why = "cannot be searched: the target may have created files in it that other programs run"
    return tuple(found), tuple(f"{path} {why} automatically" for path in closed)


def build_refusal(
    command: tuple[str, ...], error: SandboxError, *, kind: Kind = "refused"
) -> Report:
    outcome = Outcome(kind=kind, exit_code=error.exit_code, detail=error.message)
    return Report(command=masked(command), outcome=outcome)


def find_outcome(plan: Plan, ending: Ending) -> Outcome:
    status = ending.reaped.status
    if ending.reason == "timeout":
        return Outcome(kind="timeout", exit_code=EXIT_TIMEOUT)
    # Do not use os.WTERMSIG for the number of the signal, because Windows does not have it.
    number = SIGKILL if status is None else status & 0x7F
    if not number:
        code = (status or 0) >> 8
        # If Windows denies memory to a process, the process crashes, and its exit code shows only
        # the crash. So the memory limit counts as the cause if it was reached.
        crashed = code >> 31 and "memory" in ending.reaped.hit
        if code == NOT_ENOUGH_QUOTA and "cpu_time" in ending.reaped.hit:
            return Outcome(kind="cpu_time", exit_code=code)
        return Outcome(kind="memory" if crashed else "exited", exit_code=code)
    kind = _fatal_limit(plan, ending, number)
    return Outcome(kind=kind, exit_code=SIGNALLED + number, signal=number)


def _fatal_limit(plan: Plan, ending: Ending, number: int) -> Kind:
    """Return the limit that caused a fatal signal, or "signalled" if no limit caused it."""
    if ending.reason == "memory" or ("memory" in ending.reaped.hit and number == SIGKILL):
        return "memory"
    if ending.reason == "cpu_time" or _is_cpu_time_used(plan, ending, number):
        return "cpu_time"
    return "pids" if ending.reason == "pids" else "signalled"


def _is_cpu_time_used(plan: Plan, ending: Ending, number: int) -> bool:
    """Return whether the limit on CPU time probably caused a signal. This is judged by the CPU time
    that was used, because the signal itself does not show its cause.
    """
    if plan.cpu_time is None or ending.reason or number not in ROUNDING:
        return False
    return ending.reaped.cpu * 1000 >= plan.cpu_time * ROUNDING[number]


def to_json(item: object) -> object:
    if hasattr(item, "__match_args__"):
        return {name: to_json(getattr(item, name)) for name in fields(item)}
    if isinstance(item, tuple | list):
        return [to_json(entry) for entry in item]
    return item


def write(report: Report, fd: int) -> None:
    """Write the report as JSON to `fd`. The caller opened `fd` before the launch, without following
    links.
    """
    import json

    with open(fd, "w", encoding="utf-8", closefd=False) as file:
        written = {name: to_json(getattr(report, name)) for name in fields(report)}
        json.dump({"version": JSON_VERSION, **written}, file, indent=2)
        file.write("\n")
