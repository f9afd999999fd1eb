"""Whether a runtime starts at all under what is to hold it, tried once and remembered.

A runtime that needs what an AppContainer or a mitigation takes away dies before its first line,
with a code that tells nobody anything. So the copy in the store is started with a line of its own,
under the steps of the very run, before the first server is; that it did is noted beside the copy,
for this build of Windows and these steps. One that does not start is refused, with what was seen.

For who gives birth: `ensure(plan)` before `birth(plan, ...)`. Plans without a store pass.
"""

from __future__ import annotations

import os
import sys

from corral.paths.windows import is_inside
from corral.platforms.steps import StepFailed
from corral.platforms.windows import undo
from corral.platforms.windows.mechanisms import path_grants
from corral.platforms.windows.mechanisms.app_container import Profile
from corral.platforms.windows.mechanisms.mitigations import Mitigations
from corral.platforms.windows.runtime_copies import store as runtimes
from corral.programs import windows_resolve
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Plan, Step
    from corral.platforms.windows.runtime_copies.store import Store
    from corral.programs.arguments import Kind

LINES: dict[Kind, tuple[str, ...]] = {
    "python": ("-I", "-c", "print('started')"),
    "node": ("-e", "console.log('started')"),
    "deno": ("eval", "console.log('started')"),
    "bun": ("-e", "console.log('started')"),
}
STARTED = "started"
# NTSTATUS of a process that the loader gave up, and what that mostly means.
MEANINGS = {
    0xC0000142: "a library of it could not start: it wants windows, or more of the desktop",
    0xC0000135: "a library that it needs is not there, or cannot be read inside",
    0xC0000022: "access was denied while it was loaded",
    0xC000007B: "a library of it is for another machine",
}


def ensure(plan: Plan) -> None:
    """StepFailed if the runtime of this plan does not start under its steps."""
    store = next((step for step in plan.steps if isinstance(step, runtimes.Store)), None)
    line = LINES.get(windows_resolve.kind_of(store.program.path)) if store else None
    if store is None or line is None:
        return
    note = note_of(store, plan.steps)
    if os.path.exists(note):
        return
    problem = _tried(plan, store, line)
    if problem:
        raise StepFailed("starts", OSError(0, problem, store.program.path))
    with open(note, "w", encoding="utf-8") as file:
        file.write(store.program.path)


def note_of(store: Store, steps: tuple[Step, ...]) -> str:
    """Where it is noted that this copy has started under these steps."""
    import hashlib

    held = [step.describe() for step in steps if isinstance(step, Mitigations)]
    words = "\0".join((build(), *held))
    tree = next(one for one in store.trees if is_inside(store.program.path, one.staged))
    return f"{tree.room}.{hashlib.sha256(words.encode()).hexdigest()[:16]}"


def build() -> str:
    if sys.platform != "win32":
        return ""
    return ".".join(map(str, sys.getwindowsversion()[:3]))


def meaning(code: int) -> str:
    return MEANINGS.get(code & 0xFFFFFFFF, "")


def _tried(plan: Plan, store: Store, line: tuple[str, ...]) -> str:
    """What went wrong; empty if it started."""
    from corral.platforms.windows import spawn
    from corral.platforms.windows.probes import trial

    reading, writing = os.pipe()
    output, saying = os.pipe()
    try:
        steps = trial_steps(plan.steps, store, line)
        tried = replace(plan, program=replace(plan.program, cwd=""), steps=steps)
        child = spawn.birth(tried, (reading, saying, saying))
    except BaseException:
        os.close(writing)
        os.close(output)
        raise
    finally:
        os.close(reading)
        os.close(saying)
    seen = trial.Trial(child, input=writing, output=output).finish()
    if seen.said.splitlines()[-1:] == [STARTED]:
        return ""
    code = (seen.reaped.status or 0) >> 8
    said = seen.said.splitlines()[-1] if seen.said else "it said nothing"
    why = meaning(code) or ("it did not end" if seen.hung else said)
    return f"this runtime does not start here: {why} (exit code {code:#x})"


def trial_steps(steps: tuple[Step, ...], store: Store, line: tuple[str, ...]) -> tuple[Step, ...]:
    """The same, with a line of ours to run, in its own directory and with nothing granted."""
    home = next((step.home for step in steps if isinstance(step, Profile)), "")
    program = replace(store.program, argv=(store.program.path, *line), cwd=home)
    changed: list[Step] = []
    for step in steps:
        if isinstance(step, runtimes.Store):
            changed.append(replace(step, program=program))
        elif isinstance(step, undo.Claim):
            changed.append(replace(step, roots=()))
        elif not isinstance(step, path_grants.Grants):
            changed.append(step)
    return tuple(changed)
