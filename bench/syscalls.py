"""What system calls and real work cost behind corral's walls, against the same program outside."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import measure
import peers
from measure import Section

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
CALLS = {"getppid": 400_000, "read": 200_000, "stat": 100_000, "open": 50_000, "threads": 10_000}
CALL_BUDGETS = {"getppid": 1.4}
WORKLOADS = ("imports", "walk", "database")
WORKLOAD_BUDGET = 1.1


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = measure.parser(__doc__, rounds=15)
    parser.add_argument("--call", choices=tuple(CALLS), action="append", help="may be repeated")
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="may be repeated")
    return parser.parse_args(words)


def chosen(options: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Everything, or only what was named."""
    if options.call or options.workload:
        return tuple(options.call or ()), tuple(options.workload or ())
    return tuple(CALLS), WORKLOADS


def main() -> int:
    options = arguments()
    output = measure.Output(json_wanted=options.json)
    with measure.apart() as (directory, environment):
        output.notice("installing the checkout ...")
        corral = peers.install(os.path.join(directory, "corral"))
        # Granted by name: a target sees nothing of the user's otherwise.
        granted = os.path.join(directory, "granted")
        os.mkdir(granted)
        inside = [corral.corral, "run", "--read", granted, "--read", HERE, "--"]
        calls, workloads = chosen(options)
        rounds = measure.rounds_of(options)
        if calls:
            loop = compiled(granted) or [corral.python, os.path.join(HERE, "calls.py")]
            scale = 10 if options.quick else 1
            output.show(cost(calls, loop, inside, environment, rounds, scale))
        if workloads:
            work = [corral.python, "-I", os.path.join(HERE, "workloads.py")]
            output.show(realistic(workloads, work, inside, environment, rounds))
    return output.finish()


def compiled(directory: str) -> list[str] | None:
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    program = os.path.join(directory, "calls")
    source = os.path.join(HERE, "syscalls.c")
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
    contenders = {}
    for name in calls:
        command = [*loop, name, str(CALLS[name] // scale)]
        contenders[f"{name} outside"] = functools.partial(reported, command, environment)
        if len(loop) == 1:
            filtered = [*command, "-f"]
            contenders[f"{name} any filter"] = functools.partial(reported, filtered, environment)
        contenders[f"{name} inside"] = functools.partial(reported, [*inside, *command], environment)
    stats = measure.interleave(contenders, rounds, warm_up=1)
    ratios = tuple(
        measure.ratio(
            f"{name}: inside / outside",
            stats[f"{name} inside"],
            stats[f"{name} outside"],
            CALL_BUDGETS.get(name),
        )
        for name in calls
    )
    notes = () if len(loop) == 1 else ("no C compiler: interpreted loops, which hide the cost",)
    return Section("One system call", "ns", tuple(stats.values()), ratios, notes)


def realistic(
    workloads: Sequence[str],
    work: list[str],
    inside: list[str],
    environment: Mapping[str, str],
    rounds: int,
) -> Section:
    contenders = {}
    for name in workloads:
        command = [*work, name]
        contenders[f"{name} outside"] = functools.partial(reported, command, environment)
        contenders[f"{name} inside"] = functools.partial(reported, [*inside, *command], environment)
    stats = measure.interleave(contenders, rounds, warm_up=1)
    ratios = tuple(
        measure.ratio(
            f"{name}: inside / outside",
            stats[f"{name} inside"],
            stats[f"{name} outside"],
            WORKLOAD_BUDGET,
        )
        for name in workloads
    )
    return Section("Real work", "ms", tuple(stats.values()), ratios)


def reported(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """What the program says that it took."""
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.decode(errors='replace')}")
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(measure.guarded(main))
