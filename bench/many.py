"""Run many servers for an hour, start short programs meanwhile, and check for leaks.

The servers run until the end. The hour is split into equal intervals. In each interval the script
starts /bin/true as many times as its share of --starts, waits for the end of the interval, and
takes a sample of all counters. A counter in `MARGINS` fails if its median in the last quarter of
the samples exceeds its median in the third quarter by more than its margin. This finds a leak of
one descriptor in a thousand starts. Memory may grow by 1%, and all other counters must not grow.
At the end the script ends the servers and checks that their processes and files are gone. It does
not check how long anything takes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TextIO

import counters
import fleet
import measure
import peers
from measure import Ratio, Section, Stats

SAMPLES = 60
FEWEST_SAMPLES = 8
"""A run with fewer samples is not judged: each quarter needs two samples."""
SETTLE_SECONDS = 2.0
"""Pause before the first sample. Meanwhile each supervisor wakes up once more, to import the
modules that it needs when its run ends.
"""
IDLE_SECONDS = 60.0
PARTS = ("long", "idle")
WAYS = ("command", "api")
REAL = "mcp-server-time"
MEMORY_MARGIN = 0.01
MARGINS = {
    counters.RSS: MEMORY_MARGIN,
    "KB of these files": MEMORY_MARGIN,
    **dict.fromkeys(
        (
            counters.DESCRIPTORS, counters.THREADS, counters.WAKE_UPS, counters.CPU,
            "processes", "processes of the user", "run records", "files of the user's corral",
            "temporary files", "control groups", "kernel keys",
        ),
        0.0,
    ),
}  # fmt: skip
"""The allowed growth of each counter, as a fraction of its value. PSS and mounts are left out,
because other processes change them too.
"""
PASSING = (
    "processes of the user", "run records", "temporary files", "control groups", "kernel keys"
)  # fmt: skip
"""Counters that must return to their first values after the last server has ended."""
PATIENCE_SECONDS = 60
WORKING = ("targets", "the launching process", "zygotes")
"""Processes whose CPU time and wake-ups may grow, because they answer requests or start servers."""
Sample = Mapping[str, float]
Samples = list[Sample]


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, help="default: both")
    parser.add_argument(
        "--through",
        choices=WAYS,
        default="command",
        help="start the servers with `corral run` (command) or `corral.launch` (api)",
    )
    parser.add_argument("--servers", type=measure.positive, default=200, help="running at once")
    parser.add_argument("--real", type=int, default=0, help=f"how many of them are {REAL}")
    parser.add_argument("--idle", type=measure.positive, default=30, help="idle servers to compare")
    parser.add_argument("--minutes", type=float, default=60.0, help="run for at least this long")
    parser.add_argument("--starts", type=measure.positive, default=10_000, help="in a row")
    parser.add_argument("--uid", type=int, default=os.geteuid(), help="who runs corral (for root)")
    parser.add_argument("--samples", metavar="FILE", help="append each sample as a line of JSON")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser.parse_args(words)


def judge(samples: Samples) -> tuple[Ratio, ...]:
    """Return how much each checked counter grew in the last quarter of the samples, compared with
    the quarter before it.
    """
    if len(samples) < FEWEST_SAMPLES:
        raise SystemExit(f"too few samples: {len(samples)} (at least {FEWEST_SAMPLES} are needed)")
    quarter = len(samples) // 4
    found = []
    for name in samples[-1]:
        role, _, counter = name.partition(": ")
        if counter not in MARGINS or (role in WORKING and counter in _ACTIVITY):
            continue
        before, last = (
            statistics.median(sample[name] for sample in part)
            for part in (samples[-2 * quarter : -quarter], samples[-quarter:])
        )
        found.append(Ratio(f"{name}, growth", last - before, MARGINS[counter] * before))
    return tuple(found)


_ACTIVITY = (counters.WAKE_UPS, counters.CPU)


def settle(take: Callable[[], Sample], before: Sample) -> Sample:
    """Take a sample every second, for at most a minute, until no counter in `PASSING` is higher
    than in `before`. Return the last sample.

    The first samples may be too high, because a process may still be ending, and because the kernel
    frees unused keys late on a busy machine.
    """
    for _ in range(PATIENCE_SECONDS):
        sample = take()
        if all(sample[name] <= before[name] for name in _passing(before)):
            break
        time.sleep(1)
    return sample


def _passing(sample: Sample) -> list[str]:
    return [name for name in sample if name.partition(": ")[2] in PASSING]


def wait_until_gone(before: Sample, places: counters.Places) -> tuple[Ratio, ...]:
    """Wait until the servers' processes and files are gone, and return how many are still left."""
    after = settle(lambda: counters.host(places), before)
    return tuple(
        Ratio(f"{name}, left", after[name] - before[name], 0.0) for name in _passing(before)
    )


def keep(
    held: fleet.Fleet,
    roles: fleet.Roles,
    places: counters.Places,
    asked: argparse.Namespace,
    record: TextIO | None = None,
) -> Samples:
    """Divide the starts and the time into equal shares, and take a sample after each share."""
    number = min(SAMPLES, asked.starts)
    began = time.monotonic()
    samples: Samples = []

    def take() -> Sample:
        return counters.sample(roles, places)

    for index in range(number):
        held.start(asked.starts * (index + 1) // number - asked.starts * index // number)
        due = began + asked.minutes * 60 * (index + 1) / number
        time.sleep(max(0.0, due - time.monotonic()))
        samples.append(settle(take, samples[-1]) if samples else take())
        if record:
            print(json.dumps({"seconds": time.monotonic() - began, **samples[-1]}), file=record)
            record.flush()
        started = asked.starts * (index + 1) // number
        passed = (time.monotonic() - began) / 60
        print(f"{started} starts, {passed:.0f} minutes ...", file=sys.stderr, flush=True)
    return samples


def hold_long(
    held: fleet.Fleet,
    servers: Sequence[Sequence[str]],
    places: counters.Places,
    asked: argparse.Namespace,
    record: TextIO | None = None,
) -> Section:
    before = counters.host(places)
    with fleet.closing(held):
        # A user's first start probes the host and caches the findings. Both must be over before
        # the first sample.
        held.start(1)
        roles = held.hold(servers)
        time.sleep(SETTLE_SECONDS)
        samples = keep(held, roles, places, asked, record)
        held.ask()
    residue = wait_until_gone(before, places)
    rows = tuple(
        Stats(name, tuple(sample[name] for sample in samples[len(samples) // 2 :]))
        for name in samples[-1]
    )
    title = f"{len(servers)} servers at once and {asked.starts} starts in a row"
    return Section(title, "second half", rows, (*judge(samples), *residue))


def compare_idle(
    fleets: Mapping[str, fleet.Fleet], servers: Sequence[Sequence[str]], places: counters.Places
) -> Section:
    """Run the same servers with each fleet in turn, and compare memory and wake-ups per server."""
    found = []
    for name, held in fleets.items():
        with fleet.closing(held):
            roles = held.hold(servers)
            time.sleep(SETTLE_SECONDS)
            first = counters.sample(roles, places)
            time.sleep(IDLE_SECONDS)
            last = counters.sample(roles, places)
        for role in roles:
            for counter in (counters.PSS, counters.RSS, counters.DESCRIPTORS, counters.THREADS):
                found += _share(f"{name}, {role}", counter, last.get(f"{role}: {counter}"))
            key = f"{role}: {counters.WAKE_UPS}"
            woken = f"{counters.WAKE_UPS} in {IDLE_SECONDS:g} s"
            found += _share(f"{name}, {role}", woken, last[key] - first[key])
    title = f"{len(servers)} idle servers, all together"
    return Section(title, "", (), tuple(found))


def _share(who: str, counter: str, value: float | None) -> list[Ratio]:
    return [] if value is None else [Ratio(f"{who}: {counter}", value)]


@contextlib.contextmanager
def user(setup: peers.Setup, uid: int) -> Iterator[tuple[counters.Places, dict[str, object]]]:
    """Make a home directory for `uid`. Yield its `Places`, and the `Popen` options that
    run a process as this user in this home.
    """
    home = os.path.join(setup.directory, "home")
    os.mkdir(home, 0o700)
    options: dict[str, object] = {"cwd": home}
    if uid != os.geteuid():
        os.chown(home, uid, uid)
        os.chmod(setup.directory, 0o711)
        options |= {"user": uid, "group": uid, "extra_groups": []}
    kept = {key: text for key, text in setup.environment.items() if not key.startswith("XDG_")}
    yield counters.Places(uid, home), {**options, "env": {**kept, "HOME": home}}


def find_servers(setup: peers.Setup, number: int, real: int) -> list[list[str]]:
    here = os.path.dirname(os.path.abspath(__file__))
    script = shutil.copy(os.path.join(here, "idle_server.py"), setup.directory)
    own = [[setup.corral.python, "-I", "-S", script]] * (number - real)
    if not real:
        return own
    setup.output.notice(f"installing {REAL} ...")
    python = peers.install(os.path.join(setup.directory, "server"), [REAL]).python
    return [[os.path.join(os.path.dirname(python), REAL)]] * real + own


def run(options: argparse.Namespace, parts: Iterable[str], setup: peers.Setup) -> None:
    with user(setup, options.uid) as (places, process):
        wrapper = [setup.corral.corral, "run", "--"]
        if "idle" in parts:
            servers = find_servers(setup, options.idle, min(options.idle, options.real))
            fleets = {
                "bare": fleet.Commands([], process),
                "corral run": fleet.Commands(wrapper, process),
                "corral.launch": fleet.Launched([setup.corral.python], process),
            }
            setup.output.show(compare_idle(fleets, servers, places))
        if "long" in parts:
            servers = find_servers(setup, options.servers, min(options.servers, options.real))
            held: fleet.Fleet = (
                fleet.Commands(wrapper, process)
                if options.through == "command"
                else fleet.Launched([setup.corral.python], process)
            )
            with open(options.samples or os.devnull, "a", encoding="utf-8") as record:
                setup.output.show(hold_long(held, servers, places, options, record))


def main() -> int:
    options = arguments()
    with peers.set_up(json_wanted=options.json) as setup:
        run(options, [options.only] if options.only else PARTS, setup)
    return setup.output.finish()


if __name__ == "__main__":
    sys.exit(measure.guarded(main))
