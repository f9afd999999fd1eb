"""Check that if a step fails, the error names this step, and the steps before it are undone."""

from __future__ import annotations

import os

import pytest

from corral.abi import win32
from corral.abi import win32_process as abi
from corral.plan.model import Plan
from corral.platforms.steps import StepFailed
from corral.platforms.windows import spawn
from corral.platforms.windows.layers import machine_variables
from corral.platforms.windows.mechanisms import job, mitigations, process_creation, work_directory
from corral.platforms.windows.mechanisms.job import Job
from corral.platforms.windows.probes import trial
from corral.platforms.windows.runtime_copies.store import own_interpreter
from corral.programs.model import Program
from corral.record import replace


@pytest.fixture
def plan(tmp_path) -> Plan:
    try:
        job.create(Job()).release()
        read_back = True
    except OSError:
        read_back = False
    python = own_interpreter()
    return Plan(
        program=Program(path=python, argv=(python, "-c", "open('mark', 'w')"), cwd=str(tmp_path)),
        steps=(
            work_directory.WorkDirectory(path=str(tmp_path / "corral-x"), low=False),
            Job(read_back=read_back),
            mitigations.plan(0, subprocess=True),
            process_creation.Creation(),
        ),
        controls=(),
        environment=tuple(machine_variables().items()),
    )


def started(plan: Plan) -> spawn.Child:
    streams = os.pipe()
    try:
        return spawn.spawn(plan, (streams[0], streams[1], streams[1]))
    finally:
        for fd in streams:
            os.close(fd)


class Failing:
    """A real step, except that one method fails."""

    def __init__(self, real, verb: str):
        self.real, self.verb, self.pid = real, verb, 0

    def __getattr__(self, name):
        return self.fail if name == self.verb else getattr(self.real, name)

    def fail(self, results):
        process = results.find(abi.Process)
        self.pid = process.pid if process else 0
        raise OSError(0, "made to fail")


@pytest.mark.parametrize("verb", ["apply", "verify"])
@pytest.mark.parametrize("at", range(4))
def test_a_start_that_fails_at_any_step_leaves_no_process_or_handle(plan, tmp_path, verb, at):
    before = win32.open_handles()
    failing = Failing(plan.steps[at], verb)
    steps = (*plan.steps[:at], failing, *plan.steps[at + 1 :])
    with pytest.raises(StepFailed, match="made to fail") as caught:
        started(replace(plan, steps=steps))
    names = ["work_directory", "job", "mitigations", "process_creation"]
    assert caught.value.step == names[at]
    assert win32.open_handles() == before
    assert os.listdir(tmp_path) == []
    # Only `verify` can see a process, because `apply` runs before the process exists.
    assert bool(failing.pid) == (verb == "verify")
    if failing.pid:
        assert ended(failing.pid)


def ended(pid: int) -> bool:
    try:
        handle = abi.open_process(pid, abi.SYNCHRONIZE)
    except OSError:
        return True
    with handle:
        return abi.wait_any((handle.value,), 10_000) == 0


def test_a_target_that_cannot_be_resumed_leaves_no_process_or_handle(plan, monkeypatch, tmp_path):
    """Make ResumeThread fail. The suspended process must end without having run an instruction."""
    before = win32.open_handles()

    def fail(thread):
        raise OSError(0, "made to fail", "ResumeThread")

    monkeypatch.setattr(abi, "ResumeThread", fail)
    with pytest.raises(StepFailed, match=r"process_creation: .*made to fail"):
        started(plan)
    assert win32.open_handles() == before
    assert os.listdir(tmp_path) == []


def test_the_same_plan_runs_without_a_failing_step(plan, tmp_path):
    child = started(plan)
    assert abi.wait_any((child.pidfd,), 20_000) == 0
    assert child.reap().status == 0
    assert os.listdir(tmp_path) == ["mark"]


def test_a_replaced_program_does_not_start(plan, tmp_path):
    swapped = replace(plan, program=replace(plan.program, device=1, inode=1))
    with pytest.raises(StepFailed, match="the file was replaced after corral had found it"):
        started(swapped)
    assert os.listdir(tmp_path) == []


def test_stopping_a_run_ends_the_targets_input_from_a_console(plan, monkeypatch):
    """Check that stopping a run ends the target's input, even if a user could still type at the
    console.
    """
    monkeypatch.setattr(abi, "GetFileType", lambda _handle: abi.FILE_TYPE_CHAR)
    code = "import sys; print(sys.stdin.readline(), end='', flush=True); print(sys.stdin.read(), 'end')"
    running = trial.start(code, plan.steps[1:])
    os.write(running.input, b"typed\n")
    assert running.line() == "typed"
    # Before the signal, the target is still waiting for more input.
    assert abi.wait_any((running.child.pidfd,), 0) is None
    running.child.signal(15)
    assert abi.wait_any((running.child.pidfd,), 20_000) == 0
    assert running.finish().output == "end"


def test_input_that_arrives_after_the_targets_input_ended_is_discarded(plan, monkeypatch, tmp_path):
    """Write to the target's input after corral has ended it. The bytes must not go to a file that
    now has the descriptor's number.
    """
    monkeypatch.setattr(abi, "GetFileType", lambda _handle: abi.FILE_TYPE_CHAR)
    running = trial.start("import sys; print(1, flush=True); sys.stdin.read()", plan.steps[1:])
    assert running.line() == "1"
    running.child.signal(15)
    with (tmp_path / "other").open("wb") as other:
        os.write(running.input, b"late\n")
        assert running.finish().output == ""
        assert other.tell() == 0
    assert (tmp_path / "other").read_bytes() == b""
