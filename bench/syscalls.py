"""Measure system calls and typical work of servers (imports, a directory walk, SQLite) inside a
sandbox, and compare the times with those of the same programs outside.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

import measure
import peers
from measure import Ratio, Section, Stats

HERE = os.path.dirname(os.path.abspath(__file__))
CALLS = {"getppid": 400_000, "read": 200_000, "stat": 100_000, "open": 50_000, "threads": 10_000}
CALL_BUDGETS = {"getppid": 1.4}
WORKLOADS = ("imports", "walk", "database")
WORKLOAD_BUDGET = 1.1


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = measure.parser(__doc__, rounds=15, call=tuple(CALLS), workload=WORKLOADS)
    return parser.parse_args(words)


def chosen(options: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the chosen calls and workloads, or all of them if the user chose none."""
    if options.call or options.workload:
        return tuple(options.call or ()), tuple(options.workload or ())
    return tuple(CALLS), WORKLOADS


def main() -> int:
    options = arguments()
    calls, workloads = chosen(options)
    rounds = measure.rounds_of(options)
    with peers.set_up(json_wanted=options.json) as setup:
        corral, environment = setup.corral, setup.environment
        # Grant the directories of the compiled loop and of the Python programs, because the target
        # cannot see files that are not granted.
        granted = os.path.join(setup.directory, "granted")
        os.mkdir(granted)
        inside = [corral.corral, "run", "--read", granted, "--read", HERE, "--"]
        if calls:
            loop = compiled(granted) or [corral.python, os.path.join(HERE, "syscall_loops.py")]
            scale = 10 if options.quick else 1
            setup.output.show(cost(calls, loop, inside, environment, rounds, scale))
        if workloads:
            work = [corral.python, "-I", os.path.join(HERE, "workloads.py")]
            commands = {name: [*work, name] for name in workloads}
            budgets = dict.fromkeys(workloads, WORKLOAD_BUDGET)
            stats, ratios = both_sides(commands, inside, environment, rounds, budgets)
            setup.output.show(Section("Real work", "ms", stats, ratios))
    return setup.output.finish()


def compiled(directory: str) -> list[str] | None:
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    program = os.path.join(directory, "calls")
    source = os.path.join(HERE, "syscall_loops.c")
    subprocess.run([compiler, "-O2", "-pthread", "-o", program, source], check=True)
    return [program]


def cost(
    calls: Sequence[str],
    loop: list[str],
    inside: list[str],
    environment: Mapping[str, str],
    rounds: int,
    scale: int,
) -> Section:
    commands = {name: [*loop, name, str(CALLS[name] // scale)] for name in calls}
    # With -f the compiled loop installs a minimal seccomp filter. The loop in Python cannot do so.
    filters = ["-f"] if len(loop) == 1 else []
    stats, ratios = both_sides(commands, inside, environment, rounds, CALL_BUDGETS, filters)
    notes = () if filters else ("no C compiler: loops in Python hide a part of the cost",)
    return Section("One system call", "ns", stats, ratios, notes)


def both_sides(
    commands: Mapping[str, list[str]],
    inside: list[str],
    environment: Mapping[str, str],
    rounds: int,
    budgets: Mapping[str, float],
    filters: Sequence[str] = (),
) -> tuple[tuple[Stats, ...], tuple[Ratio, ...]]:
    """Run every command outside and inside the sandbox, and compare the times.

    `filters` are arguments with which a command installs a minimal seccomp filter. If there are
    any, also run every command outside with this filter.
    """
    sides = {}
    for name, command in commands.items():
        sides[f"{name} outside"] = command
        if filters:
            sides[f"{name} any filter"] = [*command, *filters]
        sides[f"{name} inside"] = [*inside, *command]
    contenders = {
        name: functools.partial(reported, command, environment) for name, command in sides.items()
    }
    stats = measure.interleave(contenders, rounds, warm_up=1)
    ratios = tuple(
        measure.ratio(
            f"{name}: inside / outside",
            stats[f"{name} inside"],
            stats[f"{name} outside"],
            budgets.get(name),
        )
        for name in commands
    )
    return tuple(stats.values()), ratios


def reported(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Return the time that the program printed."""
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.decode(errors='replace')}")
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(measure.guarded(main))
