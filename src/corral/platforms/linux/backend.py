"""The Linux backend: the verbs that the flow calls on an operating system."""

from __future__ import annotations

import os
import sys

from corral.plan.model import Composition, Held
from corral.platforms.linux import cache_key as cache_keys
from corral.platforms.linux import host_files, options, signalfd, tier_namespaces
from corral.platforms.linux import spawn as spawning
from corral.platforms.linux.mechanisms import cgroup, seccomp
from corral.platforms.posix.environment import environment
from corral.platforms.posix.watch import Watch
from corral.programs import resolve as programs

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.host import Finding, Host
    from corral.platforms.contract import Usage
    from corral.platforms.run_records import Budget
    from corral.policy.model import Policy
    from corral.programs.model import Program

cache_key = cache_keys.cache_key
chains = options.chains
resolve = programs.resolve
signals = signalfd.Signals
spawn = spawning.spawn
watch = Watch


def compose(
    policy: Policy, program: Program, controls: Sequence[Held], *, home: str
) -> Composition:
    """Survey the files once; the rest is pure. The mechanism of `tree` decides the tier."""
    seen = host_files.survey(policy, program, home=home)
    if any(held.mechanism == options.PID_NAMESPACE for held in controls):
        steps = tier_namespaces.compose(policy, program, seen, controls)
        own, temporary = seen.home, tier_namespaces.TEMPORARY
    else:
        from corral.platforms.linux import tier_landlock

        steps = tier_landlock.compose(policy, program, seen, controls)
        own, temporary = f"{seen.directory}/home", f"{seen.directory}/tmp"  # noqa: S108
    residue = [path for step in steps if (path := getattr(step, "residue", ""))]
    return Composition(
        steps=steps,
        environment=environment(
            own, temporary, state=tier_namespaces.STATE if policy.state else ""
        ),
        home=own,
        run=seen.run,
        residue=tuple(residue),
        watched=seen.watched,
        covers=seen.covers,
        controls=(_masks(len(seen.masks)),) if seen.masks else (),
        warnings=seen.warnings,
    )


def _masks(count: int) -> Held:
    return Held(
        control="masks",
        asked=f"{count} names in grants",
        stated=False,
        mechanism="mounts + inotify",
        status="cooperative",
        why="the host can replace a covered file; the kernel then detaches the cover",
    )


def warm_up() -> None:
    seccomp.warm_up(os.uname().machine)


def clean(path: str, budget: Budget) -> None:
    """Remove what a dead run left: its private directory or its cgroup.

    The path and the file system's type decide which: the content is the target's.
    """
    from corral.platforms.posix import run_directories

    if run_directories.is_work_directory(path):
        run_directories.remove(path, budget)
    elif cgroup.is_leaf(path):
        cgroup.remove(path)


def measure(root: int) -> Usage:
    from corral.platforms.linux import usage

    return usage.measure(root)


def doctor(host: Host) -> Sequence[tuple[str, str, Finding | None]]:
    from corral.platforms.linux.probes import host as probes

    return probes.doctor_lines(host)


def probe() -> tuple[Finding, ...]:
    from corral.platforms.linux.probes import host

    return host.probe()
