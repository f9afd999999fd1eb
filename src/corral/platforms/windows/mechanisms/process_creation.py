"""The creation of the target: suspended, in its job, with its three streams and nothing else.

The process is created with every restriction in one attribute list, verified while it cannot run
yet, and only then resumed. Where Windows does not accept a job in that list, the suspended process
is assigned to it: it has not executed anything either way.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from corral.abi import win32_job
from corral.abi import win32_process as abi
from corral.abi.win32 import Handle
from corral.abi.win32_security import Capabilities
from corral.paths.windows import upper_case
from corral.plan import model
from corral.plan.model import Plan, Results
from corral.platforms.steps import StepFailed, unverified
from corral.platforms.windows.mechanisms.desktop import Desktop
from corral.platforms.windows.mechanisms.job import KILLED, LimitedJob
from corral.platforms.windows.mechanisms.mitigations import ProcessAttributes
from corral.platforms.windows.mechanisms.restricted_token import PrimaryToken
from corral.platforms.windows.runtime_copies.store import find
from corral.platforms.windows.streams import Streams
from corral.programs import windows_command_line
from corral.programs.model import Program
from corral.record import record, replace

INTERACTIVE = "winsta0\\default"
"""For an AppContainer. Any other target gets the caller's own desktop: a service has another."""


@record
class Launch:
    """What to create the process from. `spawn` adds it to the results before the first step."""

    plan: Plan
    stdio: tuple[int, int, int]


@record
class ExtraVariables:
    """Variables that steps add to the environment of the plan."""

    values: tuple[tuple[str, str], ...]


@record
class Creation:
    name = "process_creation"
    stage: model.Stage = "clone"
    verify = unverified

    def describe(self) -> str:
        return (
            "create the process suspended, in the job, without a console, with three handles "
            "to inherit; look at it, then resume it"
        )

    def apply(self, results: Results) -> None:
        launch = results.get(Launch)
        streams = Streams(launch.stdio)
        results.add(streams)
        try:
            create(launch.plan, streams, results)
        except OSError as error:
            raise StepFailed("exec", error) from error
        except ValueError as error:
            raise StepFailed("exec", str(error)) from error
        finally:
            streams.close_handles()


def create(plan: Plan, streams: Streams, results: Results) -> None:
    """Create the process suspended, and add it to the results."""
    program = started_program(plan)
    application, line = windows_command_line.start_line(
        (program.path, *program.argv[1:]), system_root=abi.windows_directory()
    )
    job = results.get(LimitedJob).handle
    token, desktop = results.find(PrimaryToken), results.find(Desktop)
    capabilities, extra = results.find(Capabilities), results.find(ProcessAttributes)
    numbers = extra.values if extra else ()
    with abi.Attributes(2 + len(numbers) + (capabilities is not None)) as attributes:
        in_job = _add_job(attributes, job)
        attributes.add_handles(abi.PROC_THREAD_ATTRIBUTE_HANDLE_LIST, streams.values())
        for attribute, value, size in numbers:
            attributes.add_number(attribute, value, size)
        if capabilities is not None:
            attributes.add(abi.PROC_THREAD_ATTRIBUTE_SECURITY_CAPABILITIES, capabilities.value)
        default_desktop = "" if capabilities is None else INTERACTIVE
        process = abi.create_process(
            token.handle if token else None,
            application=application,
            command_line=line,
            environment=windows_command_line.environment_block(_variables(plan, results)),
            directory=program.cwd,
            desktop=desktop.path if desktop else default_desktop,
            stdio=streams.values(),
            flags=abi.CREATE_SUSPENDED | abi.DETACHED_PROCESS,
            attributes=attributes,
        )
    results.add(process)
    if not in_job:
        try:
            win32_job.AssignProcessToJobObject(job.value, process.handle.value)
        except OSError:
            abi.TerminateProcess(process.handle.value, KILLED)
            raise


def started_program(plan: Plan) -> Program:
    """Return the program itself, or its copy in the store, which an AppContainer can read."""
    store = find(plan.steps)
    if store is not None:
        return replace(store.program, cwd=store.path_inside(plan.program.cwd) or store.program.cwd)
    _check_same_file(plan.program)
    return plan.program


def plan_variables(plan: Plan) -> Sequence[tuple[str, str]]:
    """Return the variables; like an argument, a value that is a copied path names the copy."""
    store = find(plan.steps)
    if store is None:
        return plan.environment
    return [(name, store.path_inside(value)) for name, value in plan.environment]


def _variables(plan: Plan, results: Results) -> Iterable[tuple[str, str]]:
    """Return the variables of the plan and of steps. Of names that differ only in case the last
    one counts.
    """
    extra = results.find(ExtraVariables)
    every = (*plan_variables(plan), *(extra.values if extra else ()))
    return {upper_case(name): (name, value) for name, value in every}.values()


def _check_same_file(program: Program) -> None:
    """Raise OSError if the program was replaced since it was resolved."""
    if program.inode:
        seen = os.stat(program.path)
        if (seen.st_dev, seen.st_ino) != (program.device, program.inode):
            raise OSError(0, "is no longer the program that was resolved", program.path)


def _add_job(attributes: abi.Attributes, job: Handle) -> bool:
    try:
        attributes.add_handles(abi.PROC_THREAD_ATTRIBUTE_JOB_LIST, (job.value,))
    except OSError:
        return False
    return True
