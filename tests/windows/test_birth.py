"""A step that fails, wherever it stands: named, and nothing is left of what stood before it."""

from __future__ import annotations

import os

import pytest

from corral.abi import win32
from corral.abi import win32_process as abi
from corral.plan.model import Plan
from corral.platforms.steps import StepFailed
from corral.platforms.windows import environment, layers, spawn
from corral.platforms.windows.mechanisms import job, mitigations, process_creation, work_directory
from corral.platforms.windows.mechanisms.job import Job
from corral.platforms.windows.probes import trial
from corral.programs.model import Program


@pytest.fixture
def plan(tmp_path) -> Plan:
    try:
        job.create(Job()).close()
        read_back = True
    except OSError:
        read_back = False
    python = environment.interpreter()
    return Plan(
        program=Program(path=python, argv=(python, "-c", "open('mark', 'w')"), cwd=str(tmp_path)),
        steps=(
            work_directory.WorkDirectory(path=str(tmp_path / "corral-x"), low=False),
            Job(read_back=read_back),
            mitigations.plan(0, subprocess=True),
            process_creation.Creation(),
        ),
        controls=(),
        environment=tuple(environment.machine().items()),
    )


def give_birth(plan: Plan) -> spawn.Child:
    streams = os.pipe()
    try:
        return spawn.birth(plan, (streams[0], streams[1], streams[1]))
    finally:
        for fd in streams:
            os.close(fd)


class Watched:
    """Fails at one step; before that it is the real thing."""

    def __init__(self, real, at: int):
        self.real, self.at, self.count, self.pid = real, at, 0, 0

    def __call__(self, step, scene):
        self.pid = self.pid or scene.pid
        if self.count == self.at:
            raise OSError(0, "made to fail")
        self.count += 1
        self.real(step, scene)


@pytest.mark.parametrize("verb", ["apply", "verify"])
@pytest.mark.parametrize("at", range(4))
def test_a_step_that_fails_leaves_nothing(plan, monkeypatch, tmp_path, verb, at):
    before = win32.open_handles()
    failing = Watched(getattr(layers, verb), at)
    monkeypatch.setattr(layers, verb, failing)
    with pytest.raises(StepFailed, match="made to fail") as caught:
        give_birth(plan)
    names = ["workdir.WorkDirectory", "job.Job", "mitigations.Mitigations", "process.Creation"]
    assert caught.value.step == names[at]
    assert win32.open_handles() == before
    assert os.listdir(tmp_path) == []
    assert bool(failing.pid) == (verb == "verify")  # by then it had been made, suspended
    if failing.pid:
        assert ended(failing.pid)


def ended(pid: int) -> bool:
    try:
        handle = abi.open_process(pid, abi.SYNCHRONIZE)
    except OSError:
        return True
    with handle:
        return abi.wait_any((handle.value,), 10_000) == 0


def test_a_resume_that_fails_leaves_nothing(plan, monkeypatch, tmp_path):
    """It has not run a single instruction, and never will."""
    before = win32.open_handles()

    def fail(thread):
        raise OSError(0, "made to fail", "ResumeThread")

    monkeypatch.setattr(process_creation, "resume", fail)
    with pytest.raises(StepFailed, match=r"process.Creation: .*made to fail"):
        give_birth(plan)
    assert win32.open_handles() == before
    assert os.listdir(tmp_path) == []


def test_the_control_the_same_plan_runs(plan, tmp_path):
    child = give_birth(plan)
    assert abi.wait_any((child.pidfd,), 20_000) == 0
    assert child.reap().status == 0
    assert os.listdir(tmp_path) == ["mark"]


def test_a_program_that_was_swapped_does_not_start(plan, tmp_path):
    from corral.record import replace

    swapped = replace(plan, program=replace(plan.program, device=1, inode=1))
    with pytest.raises(StepFailed, match="no longer the program that was resolved"):
        give_birth(swapped)
    assert os.listdir(tmp_path) == []


def test_a_console_is_passed_on_and_its_end_is_ours_to_make(plan, monkeypatch):
    """Whoever sits there still could type: a stop ends the target's input all the same."""
    monkeypatch.setattr(abi, "GetFileType", lambda _handle: abi.FILE_TYPE_CHAR)
    code = "import sys; print(sys.stdin.readline(), end='', flush=True); print(sys.stdin.read(), 'end')"
    running = trial.start(code, plan.steps[1:])
    os.write(running.input, b"typed\n")
    assert running.line() == "typed"
    assert abi.wait_any((running.child.pidfd,), 0) is None  # the control: it waits for more
    running.child.signal(15)
    assert abi.wait_any((running.child.pidfd,), 20_000) == 0
    assert running.finish().said == "end"


def test_what_is_typed_after_the_end_goes_nowhere(plan, monkeypatch, tmp_path):
    """The number of the descriptor may be another file's by then."""
    monkeypatch.setattr(abi, "GetFileType", lambda _handle: abi.FILE_TYPE_CHAR)
    running = trial.start("import sys; print(1, flush=True); sys.stdin.read()", plan.steps[1:])
    assert running.line() == "1"
    running.child.signal(15)
    with (tmp_path / "other").open("wb") as other:
        os.write(running.input, b"late\n")
        assert running.finish().said == ""
        assert other.tell() == 0
    assert (tmp_path / "other").read_bytes() == b""
