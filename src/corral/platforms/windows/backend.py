"""Implement the contract of `platforms.contract` for Windows."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from corral.errors import LaunchError
from corral.plan import model
from corral.plan.host import Finding, Host
from corral.plan.model import Composition, Plan
from corral.platforms import contract, run_records
from corral.platforms.steps import StepFailed
from corral.platforms.windows import cache_key as keys
from corral.platforms.windows import layers, options, undo
from corral.platforms.windows import spawn as spawning
from corral.platforms.windows import watch as watching
from corral.platforms.windows.files import journal
from corral.platforms.windows.mechanisms import work_directory
from corral.platforms.windows.probes import trial
from corral.policy.model import Policy
from corral.programs import windows_resolve
from corral.programs.model import Program

resolve = windows_resolve.resolve
chains = options.chains
signals = watching.Signals
watch = watching.Watch
measure = watching.measure
cache_key = keys.cache_key
NOT_STARTED = "`corral explain -- COMMAND` shows the copied runtime and the steps of the run"


def compose(
    policy: Policy, program: Program, controls: Sequence[model.Held], *, home: str
) -> Composition:
    run = f"{os.getpid()}-{os.urandom(4).hex()}"
    return layers.compose(policy, program, controls, home=home, run=run)


def warm_up() -> None:
    """Do nothing. Windows cannot fork, so each run starts a new supervisor, and there is no process
    in which corral could prepare something for the next run.
    """


def clean(path: str, _budget: run_records.Budget) -> None:
    """Remove what a dead run has left at `path`.

    If `path` is a journal file, undo the changes that it lists, and those of all other dead runs.
    Otherwise `path` is the run's private directory.
    """
    if path.endswith(journal.SUFFIX):
        undo.sweep(os.path.dirname(path))
    else:
        work_directory.remove(path)


def spawn(plan: Plan, stdio: contract.Stdio) -> spawning.Child:
    trial.check_runtime_starts(plan)
    return spawning.spawn(plan, stdio)


def doctor(host: Host) -> Sequence[tuple[str, str, Finding | None]]:
    from corral.platforms.windows.probes import doctor as lines

    return lines.lines(host)


def find_spare_maker(_plan: Plan) -> None:
    """Return None, because a spare is a sandbox whose process exists before its command is known.
    Windows cannot create such a process.
    """


def rehearse(plan: Plan) -> None:
    """Copy the server's runtime, such as Python, into corral's store, and check that it starts."""
    try:
        trial.check_runtime_starts(plan)
    except StepFailed as failed:
        raise LaunchError(failed.step, failed.cause, hint=NOT_STARTED) from failed


def probe(wanted: Collection[str] = (), /) -> tuple[Finding, ...]:
    from corral.platforms.windows.probes import host

    return host.probe(wanted)
