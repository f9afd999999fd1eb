"""What corral's flow asks of Windows."""

from __future__ import annotations

import os

from corral.plan.model import Composition
from corral.platforms.windows import console as waiting
from corral.platforms.windows import layers, options, undo
from corral.platforms.windows import spawn as births
from corral.platforms.windows import watch as watching
from corral.platforms.windows.environment import environment
from corral.platforms.windows.files import journal
from corral.platforms.windows.mechanisms import path_grants, work_directory
from corral.platforms.windows.probes import cache_key as identities
from corral.platforms.windows.probes import runtime_start
from corral.platforms.windows.runtime_copies import store as runtimes
from corral.programs import windows_resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.host import Finding, Host
    from corral.plan.model import Chains, Held, Plan
    from corral.platforms.windows.spawn import Child
    from corral.platforms.windows.watch import Usage
    from corral.policy.model import Policy
    from corral.programs.model import Program

resolve = windows_resolve.resolve
signals = waiting.Signals
watch = watching.Watch


def chains(policy: Policy) -> Chains:
    return options.chains(policy)


def compose(
    policy: Policy, program: Program, controls: Sequence[Held], *, home: str
) -> Composition:
    run = f"{os.getpid()}-{os.urandom(4).hex()}"
    steps, private = layers.compose(policy, program, controls, home=home, run=run)
    own = any(isinstance(step, work_directory.WorkDirectory) for step in steps)
    copies = next((step for step in steps if isinstance(step, runtimes.Store)), None)
    started = program if copies is None else copies.program
    left = [step.path for step in steps if isinstance(step, work_directory.WorkDirectory)]
    left += [
        os.path.join(step.directory, run + journal.SUFFIX)
        for step in steps
        if isinstance(step, undo.Claim)
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
            name for step in steps if isinstance(step, path_grants.Grants) for name in step.watched
        ),
    )


def warm_up() -> None:
    """Nothing is forked here: every run has a supervisor of its own, started for it."""


def clean(path: str) -> None:
    """Remove what a dead run left: its private directory, or what its journal names."""
    if path.endswith(journal.SUFFIX):
        undo.sweep(os.path.dirname(path))
    else:
        work_directory.remove(path)


def measure(root: int) -> Usage:
    from corral.platforms.windows import watch as usage

    return usage.measure(root)


def birth(plan: Plan, stdio: tuple[int, int, int]) -> Child:
    runtime_start.ensure(plan)
    return births.birth(plan, stdio)


def identity() -> tuple[str, ...]:
    return identities.identity()


def doctor(host: Host) -> Sequence[tuple[str, str, Finding | None]]:
    from corral.platforms.windows.probes import doctor as words

    return words.lines(host)


def probe() -> tuple[Finding, ...]:
    from corral.platforms.windows.probes import host as probes

    return probes.probe()
