"""Run the rounds of all benchmarks, and compare, judge and print the results.

A contender is corral or a program that it is compared with. Contenders take turns within one run,
so that other work on the machine slows all of them. The first rounds do not count. Minima of times
are compared, because noise only makes times longer. Medians of CPU time are compared, because a
minimum may be too small: if a contender's processes still run during the next contender's turn, a
part of their CPU time counts for that contender.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

WARM_UP = 3
QUICK_ROUNDS = 8
NOISE = 0.1
"""How far a ratio may exceed 1.0 by chance, because two runs of the same program can differ this
much.
"""
INTERRUPTED = 130


@dataclasses.dataclass(frozen=True)
class Stats:
    """The samples of one contender, in the unit of the table that shows them."""

    name: str
    samples: tuple[float, ...]
    cpu: tuple[float, ...] = ()
    """Milliseconds of CPU time, if they could be counted."""

    @property
    def minimum(self) -> float:
        return min(self.samples)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def median_cpu(self) -> float | None:
        return statistics.median(self.cpu) if self.cpu else None


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A measured ratio. It must not exceed its `budget`. Without a budget it is only reported."""

    name: str
    value: float
    budget: float | None = None

    @property
    def verdict(self) -> str:
        if self.budget is None:
            return ""
        return "pass" if self.value <= self.budget else "miss"


@dataclasses.dataclass(frozen=True)
class Section:
    """One table: a title, measurements in `unit`, ratios between them, and remarks."""

    title: str
    unit: str
    rows: tuple[Stats, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    notes: tuple[str, ...] = ()


def ratio(name: str, ours: Stats, theirs: Stats, budget: float | None = None) -> Ratio:
    return Ratio(name, ours.minimum / theirs.minimum, budget)


def cpu_ratio(
    name: str, ours: Stats, theirs: Stats, budget: float | None = None
) -> tuple[Ratio, ...]:
    """Return the ratio of CPU times, or an empty tuple if CPU time could not be counted."""
    if ours.median_cpu is None or not theirs.median_cpu:
        return ()
    return (Ratio(f"{name}, CPU", ours.median_cpu / theirs.median_cpu, budget),)


def interleave(
    contenders: Mapping[str, Callable[[], float]],
    rounds: int,
    warm_up: int = WARM_UP,
    *,
    cpu: Callable[[], float | None] = lambda: None,
    settle_seconds: float = 0.0,
) -> dict[str, Stats]:
    """Call each contender once per round. Read `cpu` before each call, and again `settle_seconds`
    after the call, so that the contender's processes can end first.
    """
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    used: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(warm_up + rounds):
        for name, measured in contenders.items():
            before = cpu()
            value = measured()
            time.sleep(settle_seconds)
            after = cpu()
            if number >= warm_up:
                samples[name].append(value)
                if before is not None and after is not None:
                    used[name].append(after - before)
    return {name: Stats(name, tuple(found), tuple(used[name])) for name, found in samples.items()}


def clean_environment(environment: Mapping[str, str], **extra: str) -> dict[str, str]:
    """Add `extra` to an environment, and remove its PYTHON* variables, which could turn off
    bytecode caching for some contenders.
    """
    kept = {name: value for name, value in environment.items() if not name.startswith("PYTHON")}
    return {**kept, **extra}


@contextlib.contextmanager
def apart() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield a temporary directory, and an environment for the contenders. The XDG variables of this
    environment put their caches and settings into the directory.
    """
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as directory:
        yield (
            directory,
            clean_environment(
                os.environ,
                XDG_CACHE_HOME=os.path.join(directory, "cache"),
                XDG_CONFIG_HOME=os.path.join(directory, "config"),
            ),
        )


def spawn(argv: list[str], environment: Mapping[str, str]) -> float:
    """Return the milliseconds from posix_spawn until `argv` ends. Its streams are /dev/null."""
    streams = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    started = time.perf_counter_ns()
    pid = os.posix_spawn(argv[0], argv, environment, file_actions=streams)
    try:
        status = os.waitpid(pid, 0)[1]
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    taken = (time.perf_counter_ns() - started) / 1e6
    if status:
        raise SystemExit(f"this command failed (wait status {status}): {' '.join(argv)}")
    return taken


def table(section: Section) -> str:
    lines = [f"{section.title} ({section.unit})" if section.unit else section.title]
    names = [row.name for row in section.rows] + [item.name for item in section.ratios]
    width = max(map(len, names), default=0)
    if section.rows:
        counted = f"  {'CPU':>9}" if any(row.cpu for row in section.rows) else ""
        lines.append(f"  {'':{width}}  {'min':>9}  {'median':>9}{counted}")
    for row in section.rows:
        cpu = "" if row.median_cpu is None else f"  {number(row.median_cpu):>9}"
        lines.append(
            f"  {row.name:{width}}  {number(row.minimum):>9}  {number(row.median):>9}{cpu}"
        )
    for item in section.ratios:
        budget = "" if item.budget is None else f"  budget <= {item.budget:g}  {item.verdict}"
        lines.append(f"  {item.name:{width}}  {number(item.value):>9}{budget}")
    lines += [f"  note: {text}" for text in section.notes]
    return "\n".join(lines)


def number(value: float) -> str:
    """Format a number with two decimals below 10, one decimal below 100, and otherwise none."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def as_data(section: Section) -> dict[str, object]:
    return {
        "title": section.title,
        "unit": section.unit,
        "rows": [
            {
                "name": row.name,
                "min": row.minimum,
                "median": row.median,
                "cpu": row.median_cpu,
                "n": len(row.samples),
            }
            for row in section.rows
        ],
        "ratios": [
            {**dataclasses.asdict(item), "verdict": item.verdict} for item in section.ratios
        ],
        "notes": list(section.notes),
    }


def parser(description: str, rounds: int, **choices: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the common options and a repeatable option for each of `choices`."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--rounds", type=positive, default=None, help=f"default {rounds}")
    made.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, less data")
    made.add_argument("--json", action="store_true", help="print JSON instead of tables")
    for name, allowed in choices.items():
        made.add_argument(f"--{name}", choices=allowed, action="append", help="may be repeated")
    made.set_defaults(usual_rounds=rounds)
    return made


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def rounds_of(options: argparse.Namespace) -> int:
    """Return --rounds if it was given, else the number for --quick, else the usual number."""
    chosen: int = options.rounds or (QUICK_ROUNDS if options.quick else options.usual_rounds)
    return chosen


class Output:
    """Print tables at once, or one JSON document at the end. Progress and notices go to stderr."""

    def __init__(self, *, json_wanted: bool) -> None:
        self.json_wanted = json_wanted
        self.sections: list[Section] = []

    def show(self, section: Section) -> None:
        self.sections.append(section)
        if not self.json_wanted:
            print(table(section), end="\n\n", flush=True)

    def notice(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def finish(self) -> int:
        if self.json_wanted:
            print(json.dumps([as_data(section) for section in self.sections], indent=2))
        missed = [item for section in self.sections for item in section.ratios]
        return 1 if any(item.verdict == "miss" for item in missed) else 0


def guarded(main: Callable[[], int]) -> int:
    """Run a benchmark; Ctrl-C ends it without a stack trace."""
    try:
        return main()
    except KeyboardInterrupt:
        return INTERRUPTED
