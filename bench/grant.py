"""Measure the start of a run with a write grant for a large project.

With `--against DIRECTORY`, compare it with the start of corral from another checkout.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence

import cpu_time
import measure
import peers
from measure import Ratio, Section, Stats

FILES = 20_000
LAYOUTS = ((20, 19), (100, 20))
"""The number of packages in a project, and of directories with files in each package."""
SETTLE_SECONDS = 2.5
"""Pause after making the project, because corral does not cache a directory that changed in the
last two seconds.
"""
FIRST, NEXT = "first start", "next start"
BUDGET = 1.0


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = measure.parser(__doc__, rounds=25)
    parser.add_argument("--against", metavar="DIRECTORY", help="a checkout of another commit")
    return parser.parse_args(words)


def main() -> int:
    options = arguments()
    with peers.set_up(json_wanted=options.json) as setup:
        found = {"corral": setup.corral}
        if options.against:
            other = os.path.join(setup.directory, "other")
            found["the other"] = peers.install(other, checkout=os.path.abspath(options.against))
        scripts = {name: one.corral for name, one in found.items()}
        for packages, parts in LAYOUTS:
            project = pathlib.Path(setup.directory, f"project-{packages}")
            make_project(project, packages, parts)
            time.sleep(SETTLE_SECONDS)
            stats = measure_starts(scripts, project, setup.environment, measure.rounds_of(options))
            setup.output.show(compare(stats, list(scripts), packages * (parts + 1)))
    return setup.output.finish()


def make_project(top: pathlib.Path, packages: int, parts: int) -> None:
    """Make a project with a Git repository and FILES empty files."""
    made = [top / f"package{at % packages}" / f"part{at}" for at in range(packages * parts)]
    for directory in made:
        directory.mkdir(parents=True)
    for at in range(FILES):
        (made[at % len(made)] / f"module{at}.py").touch()
    git = top / ".git"
    for name in ("hooks", "objects", "refs"):
        (git / name).mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "config").write_text("[core]\n\tbare = false\n")


def measure_starts(
    scripts: Mapping[str, str], project: pathlib.Path, environment: Mapping[str, str], rounds: int
) -> dict[str, Stats]:
    contenders = {}
    for kind in (FIRST, NEXT):
        for name, script in scripts.items():
            command = [script, "run", "--write", str(project), "--", peers.TARGET]
            own = {**environment, "XDG_CACHE_HOME": f"{environment['XDG_CACHE_HOME']}-{name}"}
            contenders[f"{name}, {kind}"] = functools.partial(start, command, own, kind)
    with cpu_time.CpuTime() as cpu:
        return measure.interleave(contenders, rounds, cpu=cpu.read, settle_seconds=0.015)


def compare(stats: Mapping[str, Stats], names: Sequence[str], directories: int) -> Section:
    ratios: list[Ratio] = []
    for kind in (FIRST, NEXT) if len(names) > 1 else ():
        ours, theirs = (stats[f"{name}, {kind}"] for name in names)
        ratios.append(measure.ratio(kind, ours, theirs, BUDGET))
        ratios += measure.cpu_ratio(kind, ours, theirs, BUDGET)
    title = f"Start with a write grant of {FILES:,} files in {directories:,} directories"
    return Section(title, "ms", tuple(stats.values()), tuple(ratios))


def start(command: list[str], environment: Mapping[str, str], kind: str) -> float:
    """Return how many milliseconds a run takes. Before a run of the kind FIRST, remove the cached
    results of searches, so that corral searches the granted project for secrets again.
    """
    if kind == FIRST:
        for file in pathlib.Path(environment["XDG_CACHE_HOME"], "corral/searched").glob("*"):
            file.unlink()
    return measure.spawn(command, environment)


if __name__ == "__main__":
    sys.exit(measure.guarded(main))
