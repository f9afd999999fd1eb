"""Measure how long a sandbox takes to start and its memory, next to its peers, in one run."""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import measure
import peers
import streams
from measure import Ratio, Section, Stats

Commands = dict[str, list[str]]

PARTS = ("cold", "warm", "stdio")
PYTHON, CORRAL = "python -I -c pass", "corral run"
COLD_BUDGETS = {PYTHON: 3.0, "srt": 0.2}
WARM_BUDGETS = {"bubblewrap": 1.0}
SUPERVISOR_MB = 12.0
IDLE_SECONDS = 2.0


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = measure.parser(__doc__, rounds=40, only=PARTS)
    parser.add_argument(
        "--peers", choices=("none", "usual", "all"), default="usual",
        help="usual: bubblewrap, firejail, srt; all: also sandlock and nono-py",
    )  # fmt: skip
    return parser.parse_args(words)


def main() -> int:
    options = arguments()
    parts = options.only or PARTS
    with peers.set_up(json_wanted=options.json) as setup:
        if "cold" in parts or "warm" in parts:
            _measure_starts(options, parts, setup)
        if "stdio" in parts:
            setup.output.show(stdio(setup.corral, setup.environment, quick=options.quick))
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
    """Return the peers' command lines, each tried once; report and leave out what is missing."""
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
    lines = {
        "true": [peers.TARGET],
        PYTHON: [corral.python, "-I", "-c", "pass"],
        CORRAL: [corral.corral, "run", "--", peers.TARGET],
        **found,
    }
    stats = measure.interleave(
        {name: functools.partial(measure.spawn, argv, environment) for name, argv in lines.items()},
        rounds,
    )
    ratios = compare(stats, CORRAL, COLD_BUDGETS)
    return Section("Cold start of /bin/true", "ms", tuple(stats.values()), ratios)


def compare(
    stats: Mapping[str, Stats], ours: str, budgets: Mapping[str, float]
) -> tuple[Ratio, ...]:
    """Compare ours with every other, with the budget where there is one."""
    return tuple(
        measure.ratio(f"{ours} / {name}", stats[ours], other, budgets.get(name))
        for name, other in stats.items()
        if name != ours and name != "true"
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
    stats = {name: Stats(name, tuple(found)) for name, found in answer["samples"].items()}
    ratios = compare(stats, "corral.launch + wait", WARM_BUDGETS)
    launches = Section("Start from a warm process", "ms", tuple(stats.values()), ratios)
    return [launches, weight(answer["idle"])]


def weight(found: list[dict[str, object]]) -> Section:
    """Report PSS and wake-ups of the processes of one idle server that the API started."""
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
    title = f"stdio: {megabytes} MB out (ms), one message there and back (us)"
    return Section(title, "", (*flow.values(), *echo.values()), ratios)


if __name__ == "__main__":
    sys.exit(measure.guarded(main))
