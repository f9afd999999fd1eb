"""Start a disposable target with the code of a real run, and return what it printed.

A runtime that needs what an AppContainer or a mitigation takes away dies before its first line,
with an exit code that says little. So before the first run the copy in the store is started with a
line of its own, under the steps of that run. A success is noted beside the copy, for this build of
Windows and these steps. A runtime that does not start is refused, with what it printed.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence

from corral.abi import win32_process as abi
from corral.paths.windows import is_inside
from corral.plan import model
from corral.plan.model import Plan
from corral.platforms.contract import Reaped
from corral.platforms.steps import StepFailed
from corral.platforms.windows import spawn, undo
from corral.platforms.windows.layers import machine_variables
from corral.platforms.windows.mechanisms import path_grants
from corral.platforms.windows.mechanisms.app_container import Profile
from corral.platforms.windows.mechanisms.mitigations import Mitigations
from corral.platforms.windows.runtime_copies.store import Store, find, own_interpreter
from corral.programs import arguments as options
from corral.programs import windows_resolve
from corral.programs.model import Program
from corral.record import record, replace

TIMEOUT_MS = 30_000
OWN_VARIABLES = ("LOCALAPPDATA", "TEMP", "TMP", "USERPROFILE")
LINES: dict[options.Kind, tuple[str, ...]] = {
    "python": ("-I", "-c", "print('started')"),
    "node": ("-e", "console.log('started')"),
    "deno": ("eval", "console.log('started')"),
    "bun": ("-e", "console.log('started')"),
}
STARTED = "started"
MEANINGS = {
    0xC0000142: "a library of it could not start: it wants windows, or more of the desktop",
    0xC0000135: "a library that it needs is not there, or cannot be read inside",
    0xC0000022: "access was denied while it was loaded",
    0xC000007B: "a library of it is for another machine",
}
"""The usual causes of an NTSTATUS with which the loader ends a process."""


@record
class Outcome:
    """`output` has errors too; `reaped` is what its job reported."""

    output: str
    reaped: Reaped
    hung: bool = False


class Trial:
    """`input` is open until the trial is finished; `output` is what the target prints."""

    def __init__(self, plan: Plan) -> None:
        reading, self.input = os.pipe()
        self.output, printing = os.pipe()
        try:
            self.child = spawn.spawn(plan, (reading, printing, printing))
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
        return Outcome(output=output, reaped=reaped, hung=hung)

    def close(self) -> None:
        os.close(self.input)
        os.close(self.output)


def observe(code: str, steps: Sequence[model.Step], *arguments: str, program: str = "") -> Outcome:
    """Run `code` under `steps` to its end. OSError if it could not be started, or did not end."""
    outcome = start(code, steps, *arguments, program=program).finish()
    if outcome.hung:
        raise OSError(0, "it did not end", "the probe")
    return outcome


def start(code: str, steps: Sequence[model.Step], *arguments: str, program: str = "") -> Trial:
    """Start Python `code`, by `program`, else a store's interpreter, else the one of corral."""
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
    return replace(store, program=replace(store.program, argv=(store.program.path, *words)))


def check_runtime_starts(plan: Plan) -> None:
    """Raise StepFailed if the runtime of this plan does not start under its steps."""
    store = find(plan.steps)
    line = LINES.get(windows_resolve.kind_of(store.program.path)) if store else None
    if store is None or line is None:
        return
    note = note_path(store, plan.steps)
    if os.path.exists(note):
        return
    problem = _try_runtime(plan, store, line)
    if problem:
        raise StepFailed("starts", OSError(0, problem, store.program.path))
    with open(note, "w", encoding="utf-8") as file:
        file.write(store.program.path)


def note_path(store: Store, steps: Sequence[model.Step]) -> str:
    """Return the file that notes that this copy has started under these steps."""
    restrictions = [step.describe() for step in steps if isinstance(step, Mitigations)]
    words = "\0".join((_build(), *restrictions))
    tree = next(one for one in store.trees if is_inside(store.program.path, one.staged))
    return f"{tree.directory}.{hashlib.sha256(words.encode()).hexdigest()[:16]}"


def _build() -> str:
    if sys.platform != "win32":
        return ""
    return ".".join(map(str, sys.getwindowsversion()[:3]))


def exit_code_meaning(code: int) -> str:
    return MEANINGS.get(code & 0xFFFFFFFF, "")


def _try_runtime(plan: Plan, store: Store, line: tuple[str, ...]) -> str:
    """Return what went wrong; empty if the runtime started."""
    steps = trial_steps(plan.steps, store, line)
    outcome = Trial(replace(plan, program=replace(plan.program, cwd=""), steps=steps)).finish()
    if outcome.output.splitlines()[-1:] == [STARTED]:
        return ""
    code = (outcome.reaped.status or 0) >> 8
    printed = outcome.output.splitlines()[-1] if outcome.output else "it said nothing"
    why = exit_code_meaning(code) or ("it did not end" if outcome.hung else printed)
    return f"this runtime does not start here: {why} (exit code {code:#x})"


def trial_steps(
    steps: Sequence[model.Step], store: Store, line: tuple[str, ...]
) -> tuple[model.Step, ...]:
    """Return the same steps with another line to run, in its own directory, and without grants."""
    home = next((step.home for step in steps if isinstance(step, Profile)), "")
    program = replace(store.program, argv=(store.program.path, *line), cwd=home)
    changed: list[model.Step] = []
    for step in steps:
        if isinstance(step, Store):
            changed.append(replace(step, program=program))
        elif isinstance(step, undo.Claim):
            changed.append(replace(step, roots=()))
        elif not isinstance(step, path_grants.Grants):
            changed.append(step)
    return tuple(changed)
