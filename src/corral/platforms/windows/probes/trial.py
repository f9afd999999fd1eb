"""A disposable target: a piece of Python, born by the code of a real run, and what it said."""

from __future__ import annotations

import os

from corral.abi import win32_process as abi
from corral.plan.model import Plan
from corral.platforms.steps import StepFailed
from corral.platforms.windows import spawn
from corral.platforms.windows.environment import interpreter, machine
from corral.platforms.windows.mechanisms.app_container import Profile
from corral.platforms.windows.runtime_copies.store import Store
from corral.programs.model import Program
from corral.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.model import Step
    from corral.platforms.posix.watch import Reaped
    from corral.platforms.windows.spawn import Child

PATIENCE = 30_000
"""Milliseconds after which a trial has failed, whatever it waits for."""


@record
class Seen:
    """`said` is its output, errors too; `reaped` what its job told."""

    said: str
    reaped: Reaped
    hung: bool = False


def observe(code: str, steps: Sequence[Step], *arguments: str, program: str = "") -> Seen:
    """Run `code` under `steps` to its end. OSError if it could not be started, or did not end."""
    seen = start(code, steps, *arguments, program=program).finish()
    if seen.hung:
        raise OSError(0, "it did not end", "the probe")
    return seen


class Trial:
    """`input` is open until the trial is finished, `output` has what it says."""

    def __init__(self, child: Child, *, input: int, output: int) -> None:  # noqa: A002
        self.child = child
        self.input = input
        self.output = output

    def line(self) -> str:
        found = b""
        while not found.endswith(b"\n") and (chunk := os.read(self.output, 1)):
            found += chunk
        return found.decode().strip()

    def finish(self) -> Seen:
        os.close(self.input)
        hung = abi.wait_any((self.child.pidfd,), PATIENCE) is None
        if hung:
            self.child.kill()
        reaped = self.child.reap()
        with open(self.output, "rb") as output:
            said = output.read().decode(errors="replace").strip()
        return Seen(said=said, reaped=reaped, hung=hung)

    def close(self) -> None:
        os.close(self.input)
        os.close(self.output)


def start(code: str, steps: Sequence[Step], *arguments: str, program: str = "") -> Trial:
    """With the interpreter at `program`, else that of a store in `steps`, else our own."""
    path = program or interpreter()
    words = ("-I", "-S", "-c", code, *arguments)
    staged = [_given(step, words) if isinstance(step, Store) else step for step in steps]
    plan = Plan(
        program=Program(path=path, argv=(path, *words)),
        steps=tuple(staged),
        controls=(),
        environment=tuple(_environment(steps).items()),
    )
    reading, writing = os.pipe()
    output, saying = os.pipe()
    try:
        child = spawn.birth(plan, (reading, saying, saying))
    except StepFailed as failed:
        os.close(writing)
        os.close(output)
        raise OSError(0, failed.cause, failed.step) from failed
    finally:
        os.close(reading)
        os.close(saying)
    return Trial(child, input=writing, output=output)


def _environment(steps: Sequence[Step]) -> dict[str, str]:
    values = machine()
    values |= {name: os.environ[name] for name in OWN if name in os.environ}
    for step in steps:
        if isinstance(step, Profile):
            values["TEMP"] = values["TMP"] = f"{step.home}\\Temp"
    return values


def _given(store: Store, words: tuple[str, ...]) -> Store:
    program = replace(store.program, argv=(store.program.path, *words))
    return replace(store, program=program)


OWN = ("LOCALAPPDATA", "TEMP", "TMP", "USERPROFILE")
