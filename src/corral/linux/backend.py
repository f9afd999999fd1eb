"""What corral's flow asks of Linux."""

from __future__ import annotations

import os
import sys

from corral import linux
from corral.linux import birth as births
from corral.linux import cgroup, layout, seccomp, walled
from corral.linux import identity as identities
from corral.linux import signals as waiting
from corral.plan import Composition
from corral.posix.environment import environment
from corral.servers import command
from corral.supervise import Watch

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.host import Finding, Host
    from corral.linux.birth import Child, Stdio
    from corral.linux.usage import Usage
    from corral.plan import Chains, Held, Plan
    from corral.policy import Policy
    from corral.servers.program import Program


resolve = command.resolve
signals = waiting.Signals
watch = Watch


def chains(policy: Policy) -> Chains:
    return linux.chains(policy)


def compose(
    policy: Policy, program: Program, controls: Sequence[Held], *, home: str
) -> Composition:
    """Look at the files once; what follows is pure. Who keeps the tree decides the tier."""
    seen = layout.survey(policy, program, home=home)
    if any(held.mechanism == linux.PID_NAMESPACE for held in controls):
        steps = walled.compose(policy, program, seen, controls)
        own, temporary = seen.home, walled.TEMPORARY
    else:
        from corral.linux import bare

        steps = bare.compose(policy, program, seen, controls)
        own, temporary = f"{seen.directory}/home", f"{seen.directory}/tmp"  # noqa: S108
    residue = [path for step in steps if (path := getattr(step, "residue", ""))]
    return Composition(
        steps=steps,
        environment=environment(own, temporary, state=walled.STATE if policy.state else ""),
        home=own,
        run=seen.run,
        residue=tuple(residue),
        watched=seen.watched,
    )


def warm_up() -> None:
    seccomp.warm_up(os.uname().machine)


def clean(path: str) -> None:
    """Remove what a dead run left: a cgroup or its private directory."""
    if os.path.exists(f"{path}/cgroup.procs"):
        cgroup.remove(path)
    elif os.path.basename(path).startswith(layout.WORK_PREFIX):
        from corral.posix import workdir

        workdir.remove(path)


def measure(root: int) -> Usage:
    from corral.linux import usage

    return usage.measure(root)


def birth(plan: Plan, stdio: Stdio) -> Child:
    return births.birth(plan, stdio)


def identity() -> tuple[str, ...]:
    return identities.identity()


def doctor(host: Host) -> Sequence[tuple[str, str, Finding | None]]:
    from corral.linux import doctor as words

    return words.lines(host)


def probe() -> tuple[Finding, ...]:
    from corral.linux import probes

    return probes.probe()
