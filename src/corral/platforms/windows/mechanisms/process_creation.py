"""The creation of the target: suspended, in its job, with its three streams and nothing else.

It is created with every restriction in one attribute list, looked at while it cannot run yet, and
only then resumed. Where Windows does not take a job in that list, the suspended process is assigned
to it: it has not executed anything either way.
"""

from __future__ import annotations

import os

from corral.abi import win32_job
from corral.abi import win32_process as abi
from corral.platforms.windows.mechanisms.job import KILLED
from corral.platforms.windows.runtime_copies.store import Store
from corral.programs import windows_command_line
from corral.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corral.abi.win32 import Handle
    from corral.plan.model import Place, Plan
    from corral.platforms.windows.run_context import Scene
    from corral.platforms.windows.streams import Streams
    from corral.programs.model import Program

INTERACTIVE = "winsta0\\default"
"""For an AppContainer. Without one the caller's own desktop is right: a service has another."""


@record
class Creation:
    place: Place = "birth"

    def describe(self) -> str:
        return (
            "create the process suspended, in the job, without a console, with three handles "
            "to inherit; look at it, then resume it"
        )


def create(plan: Plan, scene: Scene, streams: Streams) -> Handle:
    """The target, suspended: `scene.process` and `scene.pid`. Returns its first thread.

    OSError if it cannot be created. Whatever happens, nothing runs before it is resumed.
    """
    program = started(plan)
    application, line = windows_command_line.start_line(
        (program.path, *program.argv[1:]), system_root=abi.windows_directory()
    )
    job = scene.job
    if job is None:
        raise OSError(0, "there is no job to be born in")
    extra = len(scene.attributes) + (scene.capabilities is not None)
    with abi.Attributes(2 + extra) as attributes:
        born_inside = _add_job(attributes, job.handle)
        attributes.add_handles(abi.PROC_THREAD_ATTRIBUTE_HANDLE_LIST, streams.values())
        for attribute, value, size in scene.attributes:
            attributes.add_number(attribute, value, size)
        if scene.capabilities is not None:
            attributes.add(
                abi.PROC_THREAD_ATTRIBUTE_SECURITY_CAPABILITIES, scene.capabilities.value
            )
        process, thread, scene.pid = abi.create_process(
            scene.token,
            application=application,
            command_line=line,
            environment=windows_command_line.environment_block(
                unique((*variables(plan), *scene.variables))
            ),
            directory=program.cwd,
            desktop=scene.desktop or (INTERACTIVE if scene.capabilities is not None else ""),
            stdio=streams.values(),
            flags=abi.CREATE_SUSPENDED | abi.DETACHED_PROCESS,
            attributes=attributes,
        )
    scene.process = process.value
    scene.undo += [process.close, thread.close]
    if not born_inside:
        try:
            win32_job.AssignProcessToJobObject(job.handle.value, process.value)
        except OSError:
            abi.TerminateProcess(process.value, KILLED)
            raise
    return thread


def started(plan: Plan) -> Program:
    """The program itself, or its copy in the store, which an AppContainer can read."""
    store = _store(plan)
    if store is not None:
        return replace(store.program, cwd=store.placed(plan.program.cwd) or store.program.cwd)
    _same_file(plan.program)
    return plan.program


def variables(plan: Plan) -> Sequence[tuple[str, str]]:
    """A value that is the path of what was copied names the copy, as an argument does."""
    store = _store(plan)
    if store is None:
        return plan.environment
    return [(name, store.placed(value)) for name, value in plan.environment]


def _store(plan: Plan) -> Store | None:
    return next((step for step in plan.steps if isinstance(step, Store)), None)


def _same_file(program: Program) -> None:
    """What is about to be executed is what was resolved, whoever could write there since."""
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


def verify(scene: Scene) -> None:
    """OSError unless the suspended process is where it should be."""
    if scene.job is None or not win32_job.is_in_job(scene.process, scene.job.handle):
        raise OSError(0, "the process is not in its job")


def resume(thread: Handle) -> None:
    with thread:
        abi.ResumeThread(thread.value)


def unique(variables: Iterable[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Names that differ only in case are one variable: what was said last counts."""
    found: dict[str, tuple[str, str]] = {}
    for name, value in variables:
        found[windows_command_line.upper(name)] = (name, value)
    return tuple(found.values())
