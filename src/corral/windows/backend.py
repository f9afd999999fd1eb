"""What corral's flow asks of Windows."""

from __future__ import annotations

import os

from corral import windows
from corral.plan import Composition
from corral.windows import birth as births
from corral.windows import (
    grants,
    journal,
    launchers,
    layering,
    residue,
    runtimes,
    starts,
    workdir,
)
from corral.windows import identity as identities
from corral.windows import signals as waiting
from corral.windows import watch as watching
from corral.windows.environment import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.host import Finding, Host
    from corral.plan import Chains, Held, Plan
    from corral.policy import Policy
    from corral.servers.program import Program
    from corral.windows.birth import Child
    from corral.windows.usage import Usage

resolve = launchers.resolve
signals = waiting.Signals
watch = watching.Watch


def chains(policy: Policy) -> Chains:
    return windows.chains(policy)


def compose(
    policy: Policy, program: Program, controls: Sequence[Held], *, home: str
) -> Composition:
    run = f"{os.getpid()}-{os.urandom(4).hex()}"
    steps, private = layering.compose(policy, program, controls, home=home, run=run)
    own = any(isinstance(step, workdir.WorkDirectory) for step in steps)
    copies = next((step for step in steps if isinstance(step, runtimes.Store)), None)
    started = program if copies is None else copies.program
    left = [step.path for step in steps if isinstance(step, workdir.WorkDirectory)]
    left += [
        os.path.join(step.directory, run + journal.SUFFIX)
        for step in steps
        if isinstance(step, residue.Claim)
    ]
    return Composition(
        steps=steps,
        environment=(
            *environment(private, own=own).items(),
            ("PATH", ";".join(started.search)),
            *((("STATE_DIRECTORY", private),) if policy.state else ()),
            *started.environment,
        ),
        home=f"{private}\\home" if own else private,
        run=run,
        residue=tuple(left),
        watched=tuple(
            name for step in steps if isinstance(step, grants.Grants) for name in step.watched
        ),
    )


def warm_up() -> None:
    """Nothing is forked here: every run has a supervisor of its own, started for it."""


def clean(path: str) -> None:
    """Remove what a dead run left: its private directory, or what its journal names."""
    if path.endswith(journal.SUFFIX):
        residue.sweep(os.path.dirname(path))
    else:
        workdir.remove(path)


def measure(root: int) -> Usage:
    from corral.windows import usage

    return usage.measure(root)


def birth(plan: Plan, stdio: tuple[int, int, int]) -> Child:
    starts.ensure(plan)
    return births.birth(plan, stdio)


def identity() -> tuple[str, ...]:
    return identities.identity()


def doctor(host: Host) -> Sequence[tuple[str, str, Finding | None]]:
    from corral.windows import doctor as words

    return words.lines(host)


def probe() -> tuple[Finding, ...]:
    from corral.windows import probes

    return probes.probe()
