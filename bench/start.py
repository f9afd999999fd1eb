"""Measure the start time and the memory of corral and of other tools in one run, and
compare them.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import cpu_time
import measure
import peers
import plot
import streams
from measure import Ratio, Section, Stats

Commands = dict[str, list[str]]

PARTS = ("cold", "warm", "stdio")
PYTHON, CORRAL = "python -I -c pass", "corral run (uv's script)"
CORRAL_BY_PIP = "corral run (pip's script)"
CORRAL_ALLOWLIST = "corral run --allow-net (uv's script)"
CORRAL_SILENT = "corral run without reports of denials (uv's script)"
LAUNCH, POOL = "corral.launch + wait", "corral.Pool.launch + wait"
COLD_BUDGETS = {PYTHON: 2.8, "srt": 0.2}
ALLOWLIST_BUDGET = 1.15
NOTICE_BUDGET, NOTICE_CPU_BUDGET = 1.03, 1.06
CPU_BUDGETS = {"bubblewrap": 1.8}
POOL_BUDGETS = {"bubblewrap": 0.8}
SUPERVISOR_MB = 12.0
IDLE_SECONDS = 2.0
SETTLE_SECONDS = 0.015
"""Pause after each start, so that the processes of this start can end."""


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = measure.parser(__doc__, rounds=40, only=PARTS)
    parser.add_argument(
        "--peers", choices=("none", "usual", "all"), default="usual",
        help="usual: bubblewrap, firejail, srt; all: also sandlock and nono-py",
    )  # fmt: skip
    parser.add_argument("--svg", metavar="FILE", help="draw the minima and medians of the starts")
    return parser.parse_args(words)


def main() -> int:
    options = arguments()
    parts = options.only or PARTS
    with peers.set_up(json_wanted=options.json) as setup:
        if "cold" in parts or "warm" in parts:
            _measure_starts(options, parts, setup)
        if "stdio" in parts:
            setup.output.show(stdio(setup.corral, setup.environment, quick=options.quick))
    if options.svg:
        drawn = [section for section in setup.output.sections if section.unit == "ms"]
        with open(options.svg, "w", encoding="utf-8") as file:
            file.write(plot.draw(drawn))
    return setup.output.finish()


def _measure_starts(options: argparse.Namespace, parts: Sequence[str], setup: peers.Setup) -> None:
    output, corral, environment = setup.output, setup.corral, setup.environment
    found = commands(options.peers, setup)
    python = corral
    in_process: list[str] = []
    if options.peers == "all":
        python, in_process = peers.python_peers(
            os.path.join(setup.directory, "peers"), lambda missing: output.notice(str(missing))
        )
    rounds = measure.rounds_of(options)
    if "cold" in parts:
        cold_commands = {**found}
        for name in in_process:
            code = peers.IN_PROCESS[name] + "raise SystemExit(once())"
            cold_commands[f"{name} from python"] = [python.python, "-I", "-c", code]
        output.show(cold(corral, cold_commands, environment, rounds))
    if "warm" in parts:
        kept = {name: found[name] for name in ("bubblewrap",) if name in found}
        for section in warm(python, kept, in_process, environment, rounds):
            output.show(section)


def commands(wanted: str, setup: peers.Setup) -> Commands:
    """Try each peer once, and return the command lines of those that work. Report the missing
    peers.
    """
    if wanted == "none":
        return {}
    environment, directory = setup.environment, setup.directory
    setup.output.notice("finding peers ...")
    candidates = {
        "bubblewrap": peers.bubblewrap(
            peers.find_view(setup.corral.corral, environment), directory
        ),
        "firejail": peers.firejail(),
        "srt": peers.srt(os.path.join(directory, "srt")),
    }
    found = {}
    for name, argv in candidates.items():
        problem = (
            argv if isinstance(argv, peers.Missing) else peers.try_out(name, argv, environment)
        )
        if problem:
            setup.output.notice(str(problem))
        elif isinstance(argv, list):
            found[name] = argv
    return found


def cold(
    corral: peers.Installed, found: Commands, environment: Mapping[str, str], rounds: int
) -> Section:
    scripts = peers.write_scripts(corral.python, os.path.dirname(corral.corral))
    silent = peers.write_silent_script(corral.python, os.path.dirname(corral.corral))
    lines = {
        "true": [peers.TARGET],
        PYTHON: [corral.python, "-I", "-c", "pass"],
        CORRAL: [scripts["uv"], "run", "--", peers.TARGET],
        CORRAL_BY_PIP: [scripts["pip"], "run", "--", peers.TARGET],
        CORRAL_SILENT: [silent, "run", "--", peers.TARGET],
        CORRAL_ALLOWLIST: [scripts["uv"], "run", "--allow-net", "example.com", "--", peers.TARGET],
        **found,
    }
    with cpu_time.CpuTime() as cpu:
        stats = measure.interleave(
            {
                name: functools.partial(measure.spawn, argv, environment)
                for name, argv in lines.items()
            },
            rounds,
            cpu=cpu.read,
            settle_seconds=SETTLE_SECONDS,
        )
    allowlist = f"{CORRAL_ALLOWLIST} / {CORRAL}"
    notices = f"{CORRAL} / {CORRAL_SILENT}"
    ratios = (
        *compare(stats, CORRAL, COLD_BUDGETS),
        measure.ratio(allowlist, stats[CORRAL_ALLOWLIST], stats[CORRAL], ALLOWLIST_BUDGET),
        measure.ratio(notices, stats[CORRAL], stats[CORRAL_SILENT], NOTICE_BUDGET),
        *measure.cpu_ratio(notices, stats[CORRAL], stats[CORRAL_SILENT], NOTICE_CPU_BUDGET),
        *measure.cpu_ratio(f"{CORRAL} / {PYTHON}", stats[CORRAL], stats[PYTHON]),
        *measure.cpu_ratio(allowlist, stats[CORRAL_ALLOWLIST], stats[CORRAL]),
    )
    notes = peers.describe_walls(found)
    return Section("Cold start of /bin/true", "ms", tuple(stats.values()), ratios, notes)


def compare(
    stats: Mapping[str, Stats], ours: str, budgets: Mapping[str, float]
) -> tuple[Ratio, ...]:
    """Compare `ours` with all contenders except /bin/true alone and the variants of corral."""
    return tuple(
        measure.ratio(f"{ours} / {name}", stats[ours], other, budgets.get(name))
        for name, other in stats.items()
        if name not in {ours, "true", CORRAL_BY_PIP, CORRAL_ALLOWLIST, CORRAL_SILENT}
    )


def warm(
    python: peers.Installed,
    found: Commands,
    in_process: list[str],
    environment: Mapping[str, str],
    rounds: int,
) -> list[Section]:
    task = {
        "commands": found,
        "in_process": in_process,
        "rounds": rounds,
        "idle_seconds": IDLE_SECONDS,
    }
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "warm_start.py")
    done = subprocess.run(
        [python.python, script],
        input=json.dumps(task).encode(),
        stdout=subprocess.PIPE,
        check=True,
        env=environment,
    )
    answer = json.loads(done.stdout)
    titles = {
        "paused": "Start of /bin/true from a warm process, after a pause of 15 ms each",
        "back_to_back": "Start of /bin/true from a warm process, average of 8 without a pause",
    }
    sections = [compare_launches(title, answer[part]) for part, title in titles.items()]
    return [*sections, compare_pool(answer["pooled"]), weight(answer["idle"])]


def compare_launches(title: str, found: list[dict[str, Any]]) -> Section:
    stats = _read_stats(found)
    ours = stats[LAUNCH]
    others = {name: other for name, other in stats.items() if name in peers.WALLS}
    ratios = compare({LAUNCH: ours, **others}, LAUNCH, {})
    for name, other in others.items():
        ratios += measure.cpu_ratio(f"{LAUNCH} / {name}", ours, other, CPU_BUDGETS.get(name))
    return Section(title, "ms", tuple(stats.values()), ratios)


def compare_pool(found: list[dict[str, Any]]) -> Section:
    """Compare median times, but not CPU time, because a pool saves waiting time, not work."""
    stats = _read_stats(found)
    ratios = tuple(
        Ratio(f"{POOL} / {name}, median", stats[POOL].median / other.median, POOL_BUDGETS.get(name))
        for name, other in stats.items()
        if name != POOL
    )
    title = "Start of /bin/true from a pool with one spare, after a pause of 15 ms each"
    return Section(title, "ms", tuple(stats.values()), ratios)


def _read_stats(found: list[dict[str, Any]]) -> dict[str, Stats]:
    return {
        item["name"]: Stats(item["name"], tuple(item["samples"]), tuple(item["cpu"]))
        for item in found
    }


def weight(found: list[dict[str, object]]) -> Section:
    """Report PSS and wake-ups of corral's processes that serve one idle server of the API."""
    ratios, notes = [], []
    for item in found:
        role, size, woken = item["role"], item["pss"], float(str(item["wake_ups"]))
        if size is None:
            notes.append(f"the memory of {role} is shown to root only")
        else:
            budget = SUPERVISOR_MB if role == "supervisor" else None
            ratios.append(Ratio(f"{role}: PSS in MB", float(str(size)), budget))
        ratios.append(Ratio(f"{role}: wake-ups in {IDLE_SECONDS:g} s", woken, 0.0))
    return Section("One idle server", "", (), tuple(ratios), tuple(notes))


def stdio(corral: peers.Installed, environment: dict[str, str], *, quick: bool) -> Section:
    inside = [corral.corral, "run", "--"]
    megabytes, batches, rounds = (64, 30, 5) if quick else (512, 100, 9)
    flow = measure.interleave(
        {
            "plain pipe": lambda: streams.throughput([], environment, megabytes),
            "through corral": lambda: streams.throughput(inside, environment, megabytes),
        },
        rounds, warm_up=1,
    )  # fmt: skip
    echo = measure.interleave(
        {
            "plain message": lambda: streams.latency([], environment, batches),
            "message through corral": lambda: streams.latency(inside, environment, batches),
        },
        rounds, warm_up=1,
    )  # fmt: skip
    limit = 1.0 + measure.NOISE
    ratios = (
        measure.ratio(
            "throughput: time / plain", flow["through corral"], flow["plain pipe"], limit
        ),
        measure.ratio(
            "latency / plain", echo["message through corral"], echo["plain message"], limit
        ),
    )
    title = f"stdio: {megabytes} MB of output (ms), round trip of one message (us)"
    return Section(title, "", (*flow.values(), *echo.values()), ratios)


if __name__ == "__main__":
    sys.exit(measure.guarded(main))
