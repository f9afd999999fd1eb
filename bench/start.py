"""How long a sandbox takes to start and what it weighs, next to its peers, in one run."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import measure
import peers
import streams
from measure import Ratio, Section, Stats

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    Commands = dict[str, list[str]]

PARTS = ("cold", "warm", "stdio")
PYTHON, CORRAL = "python -I -c pass", "corral run"
COLD_BUDGETS = {PYTHON: 3.0, "srt": 0.2}
WARM_BUDGETS = {"bubblewrap": 1.0}
SUPERVISOR_MB = 12.0
IDLE_SECONDS = 2.0


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = measure.parser(__doc__, rounds=40)
    parser.add_argument(
        "--peers", choices=("none", "usual", "all"), default="usual",
        help="usual: bubblewrap, firejail, srt; all: also sandlock and nono-py",
    )  # fmt: skip
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; may be repeated")
    return parser.parse_args(words)


def main() -> int:
    options = arguments()
    output = measure.Output(json_wanted=options.json)
    with measure.apart() as (directory, environment):
        output.notice("installing the checkout and finding peers ...")
        corral = peers.install(os.path.join(directory, "corral"))
        parts = options.only or PARTS
        if "cold" in parts or "warm" in parts:
            _starts(options, output, corral, environment, directory)
        if "stdio" in parts:
            output.show(stdio(corral, environment, quick=options.quick))
    return output.finish()


def _starts(
    options: argparse.Namespace,
    output: measure.Output,
    corral: peers.Installed,
    environment: dict[str, str],
    directory: str,
) -> None:
    parts = options.only or PARTS
    found = commands(options.peers, corral, environment, directory, output.notice)
    python = corral
    in_process: list[str] = []
    if options.peers == "all":
        python, in_process = peers.python_peers(
            os.path.join(directory, "peers"), lambda missing: output.notice(str(missing))
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


def commands(
    wanted: str,
    corral: peers.Installed,
    environment: Mapping[str, str],
    directory: str,
    notice: Callable[[str], None],
) -> Commands:
    """The peers' command lines, each tried once; what is missing is said and left out."""
    if wanted == "none":
        return {}
    candidates = {
        "bubblewrap": peers.bubblewrap(peers.view(corral.corral, environment), directory),
        "firejail": peers.firejail(),
        "srt": peers.srt(os.path.join(directory, "srt")),
    }
    found = {}
    for name, argv in candidates.items():
        problem = (
            argv if isinstance(argv, peers.Missing) else peers.try_out(name, argv, environment)
        )
        if problem:
            notice(str(problem))
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
    """Ours against every other, with the budget where there is one."""
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
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "warm.py")
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
    """One idle server started by the API: PSS and wake-ups of everybody who is there for it."""
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
