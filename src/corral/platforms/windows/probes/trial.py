"""Start a disposable target in the same way as a real run, and return its output.

A runtime that does not work in an AppContainer or under a mitigation dies before it executes any
code, and its exit code explains little. So before a runtime's first run corral lets it execute one
line of code under the steps of that run. If this succeeds, a note records that the runtime starts
under this build of Windows and these steps, and later runs need no trial.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

from corral.abi import win32_process as abi
from corral.abi.private_directory import make_private_directory
from corral.directories import directories
from corral.paths.windows import is_inside
from corral.plan import model
from corral.plan.model import Plan
from corral.platforms.contract import Reaped
from corral.platforms.steps import StepFailed
from corral.platforms.windows import spawn, undo
from corral.platforms.windows.cache_key import windows_build
from corral.platforms.windows.layers import machine_variables
from corral.platforms.windows.mechanisms import path_grants
from corral.platforms.windows.mechanisms.app_container import Profile
from corral.platforms.windows.mechanisms.mitigations import Mitigations
from corral.platforms.windows.mechanisms.restricted_token import RestrictedToken
from corral.platforms.windows.runtime_copies.store import (
    NODE_PRELOAD,
    Store,
    digest,
    find,
    own_interpreter,
)
from corral.programs import arguments as options
from corral.programs import windows_resolve
from corral.programs.model import Program
from corral.record import record, replace

TIMEOUT_MS = 30_000
MAX_ERRORS = 1 << 20
OWN_VARIABLES = ("LOCALAPPDATA", "TEMP", "TMP", "USERPROFILE")
LINES: dict[options.Kind, tuple[str, ...]] = {
    "python": ("-I", "-c", "import asyncio; asyncio.run(asyncio.sleep(0)); print('started')"),
    "node": ("-e", "require('fs').realpathSync.native('.'); console.log('started')"),
    "deno": ("eval", "console.log('started')"),
    "bun": ("-e", "console.log('started')"),
}
NODE_WITH_CHILDREN = (
    "-e",
    (
        "require('fs').realpathSync.native('.');"
        "require('child_process').execFile(process.execPath, ['-p', '\"started\"'],"
        "(error, output) => console.log(error ? error.message : output.trim()))"
    ),
)
"""The trial for node if the target may start processes. In it node starts a second node, because
the pipes between the two can fail in an AppContainer.
"""
STARTED = "started"
RESTRICTIONS = (Mitigations, RestrictedToken)
MEANINGS = {
    0xC0000142: "one of its libraries failed to start, because it needs windows or desktop rights",
    0xC0000135: "a library that it needs is missing, or the target is not allowed to read it",
    0xC0000022: "access was denied while it was loaded",
    0xC000007B: "one of its libraries is for another kind of processor",
}
"""The usual causes of the exit codes of processes that Windows ends while they load libraries."""


@record
class Outcome:
    """The result of a trial. `output` is the target's stdout, and `errors` its stderr. `reaped`
    contains its exit status, and its resource usage as counted by the job. `hung` means that the
    target did not end within TIMEOUT_MS and was killed.
    """

    output: str
    reaped: Reaped
    hung: bool = False
    errors: str = ""

    def last_line(self) -> str:
        lines = (self.output or self.errors).splitlines()
        return lines[-1] if lines else "it printed nothing"


class Trial:
    """A running target. Its stdin and stdout are pipes, and its stdin stays open until `finish`.
    Its stderr is a separate file, so that it does not mix with the output: in an AppContainer,
    Python 3.13 and newer write the line "Failed to find real location of ..." to stderr at each
    start.
    """

    def __init__(self, plan: Plan) -> None:
        reading, self.input = os.pipe()
        self.output, printing = os.pipe()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - `finish` closes it
        try:
            self.child = spawn.spawn(plan, (reading, printing, self.errors.fileno()))
        except BaseException:
            self.close()
            raise
        finally:
            os.close(reading)
            os.close(printing)

    def line(self) -> str:
        found = b""
        while not found.endswith(b"\n") and (chunk := os.read(self.output, 1)):
            found += chunk
        return found.decode().strip()

    def finish(self) -> Outcome:
        os.close(self.input)
        hung = abi.wait_any((self.child.pidfd,), TIMEOUT_MS) is None
        if hung:
            self.child.kill()
        reaped = self.child.reap()
        with open(self.output, "rb") as file:
            output = file.read().decode(errors="replace").strip()
        with self.errors as file:
            file.seek(0)
            errors = file.read(MAX_ERRORS).decode(errors="replace").strip()
        return Outcome(output=output, reaped=reaped, hung=hung, errors=errors)

    def close(self) -> None:
        os.close(self.input)
        os.close(self.output)
        self.errors.close()


def observe(code: str, steps: Sequence[model.Step], *arguments: str, program: str = "") -> Outcome:
    """Run `code` under `steps`, and wait until it ends. Raise TimeoutError if it does not end in
    time, and OSError if it cannot be started.
    """
    outcome = start(code, steps, *arguments, program=program).finish()
    if outcome.hung:
        raise TimeoutError(0, "a trial did not end, perhaps because the machine is busy")
    return outcome


def start(code: str, steps: Sequence[model.Step], *arguments: str, program: str = "") -> Trial:
    """Start an interpreter that executes the Python code `code`.

    The interpreter is `program`, or corral's own if `program` is "". If the steps include a store,
    its copy of the interpreter is used instead.
    """
    path = program or own_interpreter()
    words = ("-I", "-S", "-c", code, *arguments)
    changed = [_with_arguments(step, words) if isinstance(step, Store) else step for step in steps]
    plan = Plan(
        program=Program(path=path, argv=(path, *words)),
        steps=tuple(changed),
        controls=(),
        environment=tuple(_environment(steps).items()),
    )
    try:
        return Trial(plan)
    except StepFailed as failed:
        raise OSError(0, failed.cause, failed.step) from failed


def _environment(steps: Sequence[model.Step]) -> dict[str, str]:
    values = machine_variables()
    values |= {name: os.environ[name] for name in OWN_VARIABLES if name in os.environ}
    for step in steps:
        if isinstance(step, Profile):
            values["TEMP"] = values["TMP"] = f"{step.home}\\Temp"
    return values


def _with_arguments(store: Store, words: tuple[str, ...]) -> Store:
    return replace(store, program=_with_line(store.program, words, store.program.cwd))


def check_runtime_starts(plan: Plan) -> None:
    """Try the runtime of this plan under the plan's steps, unless a note records that it has
    started before. Write the note if it starts. Otherwise raise StepFailed.
    """
    program = _tried_program(plan)
    line = _trial_line(program, plan.steps) if program else None
    if program is None or line is None:
        return
    note = note_path(program, plan.steps)
    if os.path.exists(note):
        return
    problem = _try_runtime(plan, line)
    if problem:
        raise StepFailed("starts", OSError(0, problem, program.path))
    make_private_directory(os.path.dirname(note))
    with open(note, "w", encoding="utf-8") as file:
        file.write(program.path)


def _tried_program(plan: Plan) -> Program | None:
    if store := find(plan.steps):
        return store.program
    restricted = any(isinstance(step, RestrictedToken) for step in plan.steps)
    return plan.program if restricted else None


def _trial_line(program: Program, steps: Sequence[model.Step]) -> tuple[str, ...] | None:
    kind = windows_resolve.kind_of(program.path)
    if kind == "node" and any(isinstance(one, Mitigations) and one.children for one in steps):
        return NODE_WITH_CHILDREN
    return LINES.get(kind)


def note_path(program: Program, steps: Sequence[model.Step]) -> str:
    """Return the path of the note that records that this program has started under these steps. The
    note for a copy in the store is next to the copy, so that both are removed together.
    """
    described = (step.describe() for step in steps if isinstance(step, RESTRICTIONS))
    words = [windows_build(), *described]
    store = find(steps)
    if store is None:
        words += [program.path, str(program.device), str(program.inode)]
        return os.path.join(directories().cache, "starts", digest(words)[:16])
    words += [one.sid for one in store.trees if one.source == NODE_PRELOAD]
    tree = next(one for one in store.trees if is_inside(store.program.path, one.staged))
    return f"{tree.directory}.{digest(words)[:16]}"


def exit_code_meaning(code: int) -> str:
    return MEANINGS.get(code & 0xFFFFFFFF, "")


def _try_runtime(plan: Plan, line: tuple[str, ...]) -> str:
    """Return why the runtime did not start, or "" if it started."""
    outcome = Trial(trial_plan(plan, line)).finish()
    if outcome.output.splitlines()[-1:] == [STARTED]:
        return ""
    code = (outcome.reaped.status or 0) >> 8
    printed = "it did not end" if outcome.hung else outcome.last_line()
    why = exit_code_meaning(code) or printed
    return f"this runtime does not start on this host: {why} (exit code {code:#x})"


def trial_plan(plan: Plan, line: tuple[str, ...]) -> Plan:
    """Return a plan that runs `line` instead of the target's arguments, in the target's private
    directory and without grants.
    """
    home = next((step.home for step in plan.steps if isinstance(step, Profile)), "")
    changed: list[model.Step] = []
    for step in plan.steps:
        if isinstance(step, Store):
            changed.append(replace(step, program=_with_line(step.program, line, home)))
        elif isinstance(step, undo.Claim):
            changed.append(replace(step, roots=()))
        elif not isinstance(step, path_grants.Grants):
            changed.append(step)
    return replace(plan, program=_with_line(plan.program, line, ""), steps=tuple(changed))


def _with_line(program: Program, line: tuple[str, ...], cwd: str) -> Program:
    return replace(program, argv=(program.path, *line), cwd=cwd)
