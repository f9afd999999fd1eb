"""Provide the functions of `contract.Backend` for Linux."""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.plan.model import Composition, Held
from corral.platforms.linux import cache_key as cache_keys
from corral.platforms.linux import host_files, options, tier_namespaces
from corral.platforms.linux import spawn as spawning
from corral.platforms.linux.mechanisms import cgroup, seccomp
from corral.platforms.posix.environment import environment
from corral.platforms.posix.watch import Watch
from corral.programs import resolve as programs

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from corral.plan.host import Finding, Host
    from corral.plan.model import Plan
    from corral.platforms.contract import SpareMaker, Usage
    from corral.platforms.run_records import Budget
    from corral.policy.model import Policy
    from corral.programs.model import Program

cache_key = cache_keys.cache_key
chains = options.chains
resolve = programs.resolve
spawn = spawning.spawn
watch = Watch
SIGINFO_BYTES = 128
"""The size of struct signalfd_siginfo. Its first word is the signal number."""


class Signals:
    """Reads incoming signals from a descriptor.

    The signals are blocked, so a signal that arrives before the first read is not lost.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        abi.sigprocmask(abi.SIG_BLOCK, numbers)
        self._fd = abi.signalfd(numbers)

    def fileno(self) -> int:
        return self._fd

    def read(self) -> list[int]:
        raw = os.read(self._fd, SIGINFO_BYTES * 16)
        starts = range(0, len(raw), SIGINFO_BYTES)
        return [int.from_bytes(raw[at : at + 4], "little") for at in starts]


signals = Signals


def compose(
    policy: Policy, program: Program, controls: Sequence[Held], *, home: str
) -> Composition:
    """Plan the steps of a run.

    Use namespaces if the plan enforces the control `tree` with a PID namespace.
    """
    seen = host_files.survey(policy, program, home=home)
    if any(held.mechanism == options.PID_NAMESPACE for held in controls):
        steps = tier_namespaces.compose(policy, program, seen, controls)
        own, temporary = tier_namespaces.home(seen), tier_namespaces.TEMPORARY
        state = tier_namespaces.STATE if policy.state else ""
    else:
        from corral.platforms.linux import tier_landlock

        seen = tier_landlock.place_state(seen)
        steps = tier_landlock.compose(policy, program, seen, controls)
        state = seen.state
        own, temporary = state or f"{seen.directory}/home", f"{seen.directory}/tmp"  # noqa: S108
    residue = [path for step in steps if (path := getattr(step, "residue", ""))]
    return Composition(
        steps=steps,
        environment=environment(own, temporary, state=state),
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
        why="a host program that replaces a covered file removes its cover",
    )


def warm_up() -> None:
    """Prepare this process for forks: import modules, make the C library's system calls available
    and load the seccomp filters that most runs need. The forked processes then need not do this.
    """
    from corral.platforms.linux import network_services  # noqa: F401

    # The first system call, whichever it is, loads the C library and the table of call numbers.
    abi.prctl(abi.PR_GET_NO_NEW_PRIVS)
    seccomp.warm_up(os.uname().machine)


def clean(path: str, budget: Budget) -> None:
    """Remove what a dead run has left behind: its private directory or its cgroup.

    Tell the two apart by the path and by the type of its file system. Do not look at the content,
    because the target could have chosen it.
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


def find_spare_maker(plan: Plan) -> SpareMaker | None:
    from corral.platforms.linux.spare import find_maker

    return find_maker(plan)


def rehearse(_plan: Plan) -> None:
    """Do nothing, because on Linux the first run of a plan is as fast as later runs."""


def probe(_wanted: Collection[str] = (), /) -> tuple[Finding, ...]:
    from corral.platforms.linux.probes import host

    return host.probe()
