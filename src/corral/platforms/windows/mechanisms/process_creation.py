"""Create the target suspended, in its job, with its three streams and no other handle.

One attribute list contains every restriction for the new process. The process is verified while it
is suspended, and is resumed only after that. If Windows does not accept a job in the list, corral
assigns the suspended process to the job. Either way, the process is in the job before it executes
anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from corral.abi import win32_job, win32_token
from corral.abi import win32_process as abi
from corral.abi.win32 import ERROR_ACCESS_DISABLED_BY_POLICY, Handle, winerror
from corral.abi.win32_security import Capabilities
from corral.paths.windows import upper_case
from corral.plan import model
from corral.plan.model import Plan, Results
from corral.platforms.steps import StepFailed, check_same_program, unverified
from corral.platforms.windows.mechanisms.app_container import ProfileFolder, local_app_data
from corral.platforms.windows.mechanisms.desktop import Desktop
from corral.platforms.windows.mechanisms.job import KILLED, Job, LimitedJob
from corral.platforms.windows.mechanisms.mitigations import ProcessAttributes
from corral.platforms.windows.mechanisms.restricted_token import PrimaryToken
from corral.platforms.windows.runtime_copies import store
from corral.platforms.windows.streams import Streams
from corral.programs import windows_command_line
from corral.programs.model import Program
from corral.record import record, replace

INTERACTIVE = "winsta0\\default"
"""The user's desktop, which an AppContainer gets if private desktops do not work on this host.
Without this name the target would get the caller's desktop, which is a different one if the caller
is a service.
"""


@record
class Launch:
    """The plan and the streams of the process to create. `spawn` adds this record to `Results`
    before the first step, so that every step can read it.
    """

    plan: Plan
    stdio: tuple[int, int, int]


@record
class ExtraVariables:
    """Environment variables that steps add to those of the plan."""

    values: tuple[tuple[str, str], ...]


@record
class Creation:
    name = "process_creation"
    stage: model.Stage = "clone"
    verify = unverified

    def describe(self) -> str:
        return (
            "create the process suspended, in the job, without a window, with three handles "
            "to inherit; verify it, then resume it"
        )

    def apply(self, results: Results) -> None:
        launch = results.get(Launch)
        streams = Streams(launch.stdio)
        results.add(streams)
        try:
            create(launch.plan, streams, results)
        except OSError as error:
            raise StepFailed("exec", _explain(error)) from error
        except ValueError as error:
            raise StepFailed("exec", str(error)) from error
        finally:
            streams.close_handles()


def _explain(error: OSError) -> OSError:
    if winerror(error) == ERROR_ACCESS_DISABLED_BY_POLICY:
        text = (
            "a policy of this machine (AppLocker, WDAC) blocks programs in corral's store: "
            "ask an administrator to allow that directory, or run corral in WSL2"
        )
        return OSError(0, text, store.default_directory())
    return error


def create(plan: Plan, streams: Streams, results: Results) -> None:
    program = started_program(plan)
    application, line = windows_command_line.start_line(
        (program.path, *program.argv[1:]), system_root=abi.windows_directory()
    )
    limits = results.get(LimitedJob)
    job = limits.handle
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
            directory=_moved(program.cwd, results),
            desktop=desktop.path if desktop else default_desktop,
            stdio=streams.values(),
            flags=abi.CREATE_SUSPENDED | _console(limits.step, numbers),
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
    """Return the program to start: its copy in the store, or the plan's own program if the plan has
    no store. In the second case, check first that the program's file has not been replaced.
    """
    copies = store.find(plan.steps)
    if copies is not None:
        inside = copies.path_inside(plan.program.cwd) or copies.program.cwd
        return replace(copies.program, cwd=inside)
    check_same_program(plan.program)
    return plan.program


def plan_variables(plan: Plan) -> Sequence[tuple[str, str]]:
    """Return the plan's environment variables. Replace the path of each copied file with the path
    of its copy.
    """
    copies = store.find(plan.steps)
    if copies is None:
        return plan.environment
    return [(name, copies.path_inside(value)) for name, value in plan.environment]


def _variables(plan: Plan, results: Results) -> Iterable[tuple[str, str]]:
    """Return the environment variables of the plan and of its steps, and those that an AppContainer
    needs. If several names differ only in case, return only the last of these variables.
    """
    extra = results.find(ExtraVariables)
    needed = () if results.find(Capabilities) is None else container_variables()
    every = (*needed, *plan_variables(plan), *(extra.values if extra else ()))
    return {upper_case(name): (name, _moved(value, results)) for name, value in every}.values()


def container_variables() -> tuple[tuple[str, str], ...]:
    """Return the environment variables that Windows needs to create a process in an AppContainer.
    If LOCALAPPDATA is missing, CreateProcess fails with ERROR_ENVVAR_NOT_FOUND (203).
    """
    return (
        ("SystemRoot", abi.windows_directory()),
        ("LOCALAPPDATA", local_app_data(os.path.expanduser("~"))),
    )


def _moved(path: str, results: Results) -> str:
    folder = results.find(ProfileFolder)
    return folder.path(path) if folder else path


def _console(limits: Job, attributes: Iterable[tuple[int, int, int]]) -> int:
    """Return the creation flag for the target's console.

    A target that may start processes gets a hidden console, because otherwise each child that needs
    a console would open a window. Other targets get none, because a console needs a process of its
    own, which the child process policy may forbid.
    """
    policies = [one for one, _, _ in attributes]
    childless = win32_token.PROC_THREAD_ATTRIBUTE_CHILD_PROCESS_POLICY in policies
    alone = childless or limits.processes == 1
    return abi.DETACHED_PROCESS if alone else abi.CREATE_NO_WINDOW


def _add_job(attributes: abi.Attributes, job: Handle) -> bool:
    try:
        attributes.add_handles(abi.PROC_THREAD_ATTRIBUTE_JOB_LIST, (job.value,))
    except OSError:
        return False
    return True
