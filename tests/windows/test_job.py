"""Test this system's job objects: limits, kills and messages."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import pytest

from corral.abi import win32, win32_job
from corral.abi import win32_process as abi
from corral.platforms.windows.mechanisms import job, mitigations, process_creation
from corral.platforms.windows.mechanisms.job import Job
from corral.platforms.windows.probes import trial

MEMORY = 96 << 20
GetHandleInformation = win32.function(
    "kernel32", "GetHandleInformation", win32.BOOL, win32.HANDLE, win32.LPVOID
)
WAIT = "import sys; print('here', flush=True); sys.stdin.read()"
TREE = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=0)
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def read_back() -> bool:
    """Return whether this system keeps a job's limits. Wine does not keep them."""
    try:
        job.create(Job()).release()
    except OSError:
        return False
    return True


def ended(pid: int) -> bool:
    try:
        handle = abi.open_process(pid, abi.SYNCHRONIZE)
    except OSError:
        return True
    with handle:
        return abi.wait_any((handle.value,), 10_000) is not None


def process_ids(handle) -> list[int]:
    """Return the pids in JobObjectBasicProcessIdList, whose first two fields are counts."""
    raw = struct.Struct("<II8Q")
    buffer = win32.ctypes.create_string_buffer(raw.size)
    win32_job.QueryInformationJobObject(handle.value, 3, buffer, raw.size, None)
    _, count, *pids = raw.unpack(buffer.raw)
    return pids[:count]


@pytest.mark.parametrize(
    "step",
    [
        Job(memory=MEMORY),
        Job(memory=MEMORY + 1000),
        Job(processes=3),
        Job(memory=MEMORY, processes=1),
        Job(),
    ],
    ids=["memory", "no whole pages", "processes", "both", "kill on close"],
)
def test_a_job_limit_that_windows_accepts_but_does_not_keep_is_an_error(step, read_back):
    """Check that corral reports an error if the system accepts a limit without keeping it."""
    if not read_back:
        with pytest.raises(OSError, match=r"was set to 0x[0-9a-f]+, but reads back as 0x0"):
            job.create(step)
        return
    made = job.create(step)
    seen = win32_job.query_information(made.handle, win32_job.JOBOBJECT_EXTENDED_LIMIT_INFORMATION)
    made.release()
    assert seen.JobMemoryLimit == seen.ProcessMemoryLimit == (step.memory or 0) // 4096 * 4096
    assert seen.BasicLimitInformation.ActiveProcessLimit == (step.processes or 0)


def test_a_cpu_rate_that_windows_accepts_but_does_not_keep_is_an_error(read_back):
    try:
        made = job.create(Job(cpu=500, read_back=read_back))
    except OSError:
        assert not read_back
        return
    seen = win32_job.query_information(
        made.handle, win32_job.JOBOBJECT_CPU_RATE_CONTROL_INFORMATION
    )
    made.release()
    assert seen.CpuRate == job.cpu_rate(500, abi.processors())
    assert seen.ControlFlags == 5


def test_ui_limits_that_windows_accepts_but_does_not_keep_are_an_error(read_back):
    step = Job(ui=job.UI_LIMITS, read_back=read_back)
    if read_back:
        job.create(step).release()
    else:
        with pytest.raises(OSError, match=r"UIRestrictionsClass|QueryInformationJobObject"):
            job.create(step)


def test_a_failed_job_leaves_no_handle(read_back):
    before = win32.open_handles()
    try:
        job.create(Job(memory=MEMORY, cpu=1, ui=job.UI_LIMITS)).release()
    except OSError:
        assert not read_back
    assert win32.open_handles() == before


def test_a_job_is_not_inheritable_and_has_no_name(read_back):
    made = job.create(Job(read_back=read_back))
    flags = win32.DWORD(9)
    GetHandleInformation(made.handle.value, win32.ctypes.byref(flags))
    made.release()
    assert flags.value == 0


def test_the_target_is_created_in_its_job(read_back):
    running = trial.start(
        WAIT, (Job(read_back=read_back, processes=1), process_creation.Creation())
    )
    assert running.line() == "here"
    assert win32_job.is_in_job(running.child.pidfd, running.child._job.handle)
    assert process_ids(running.child._job.handle) == [running.child.pid]
    assert running.finish().reaped.status == 0
    control = job.create(Job(read_back=read_back))
    assert not win32_job.is_in_job(abi.GetCurrentProcess(), control.handle)
    control.release()


@pytest.mark.parametrize("how", ["close", "terminate"])
def test_the_whole_tree_ends_with_its_job(how, read_back):
    running = trial.start(TREE, (Job(read_back=read_back), process_creation.Creation()))
    grandchild = int(running.line())
    with abi.open_process(grandchild, abi.SYNCHRONIZE) as alive:
        # Sanity check: both processes are still alive here.
        assert abi.wait_any((alive.value, running.child.pidfd), 0) is None
        if how == "close":
            running.child.abandon()
        else:
            running.child.kill()
            assert abi.wait_any((running.child.pidfd,), 10_000) == 0
            assert running.child.reap().status is None
        assert abi.wait_any((alive.value,), 10_000) == 0
    assert ended(running.child.pid)
    running.close()


def test_all_processes_end_with_the_first(read_back):
    """Check that an orphan ends after the first process, because corral then ends the whole job."""
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-I', '-S', '-c', 'input()'], stdin=0)\n"
        "print(child.pid, flush=True)\n"
    )
    running = trial.start(code, (Job(read_back=read_back), process_creation.Creation()))
    orphan = int(running.line())
    with abi.open_process(orphan, abi.SYNCHRONIZE) as alive:
        assert abi.wait_any((running.child.pidfd,), 20_000) == 0
        # Sanity check: the orphan lives, and waits for input.
        assert abi.wait_any((alive.value,), 0) is None
        assert running.child.reap().status == 0
        assert abi.wait_any((alive.value,), 10_000) == 0
    running.close()


def test_a_target_cannot_break_away(read_back):
    code = (
        "import subprocess, sys\n"
        "def start(flags):\n"
        "    try:\n"
        "        return subprocess.call([sys.executable, '-c', 'pass'], creationflags=flags)\n"
        "    except OSError as error:\n"
        "        return error.winerror\n"
        "print(start(0), start(0x01000000))\n"
    )
    steps = (Job(read_back=read_back), process_creation.Creation())
    assert trial.observe(code, steps).output == "0 5"


def test_job_messages_report_processes(read_back):
    running = trial.start(
        WAIT, (Job(read_back=read_back, processes=1), process_creation.Creation())
    )
    assert running.line() == "here"
    assert win32_job.next_message(running.child._job.port) == win32_job.JOB_OBJECT_MSG_NEW_PROCESS
    assert win32_job.next_message(running.child._job.port) is None
    assert running.finish().reaped.status == 0


def test_only_the_streams_are_inherited(read_back):
    """Check that the target inherits only the listed handles, and no other inheritable handle."""
    read, write = os.pipe()
    os.set_inheritable(read, True)
    value = _handle(read)
    code = (
        "import ctypes, sys\n"
        "kind = ctypes.WinDLL('kernel32').GetFileType\n"
        "kind.argtypes = [ctypes.c_void_p]\n"
        "print(kind(int(sys.argv[1])))\n"
    )
    inside = trial.observe(
        code, (Job(read_back=read_back), process_creation.Creation()), str(value)
    ).output
    outside = subprocess.run(
        [sys.executable, "-c", code, str(value)], capture_output=True, close_fds=False, check=True
    ).stdout
    os.close(read)
    os.close(write)
    assert (inside, outside.strip()) == ("0", b"3")


def _handle(fd: int) -> int:
    import msvcrt

    return msvcrt.get_osfhandle(fd)


GetProcessHandleCount = win32.function(
    "kernel32", "GetProcessHandleCount", win32.BOOL, win32.HANDLE, win32.LPVOID
)


def handles() -> int:
    found = win32.DWORD()
    GetProcessHandleCount(abi.GetCurrentProcess(), win32.ctypes.byref(found))
    return found.value


RUNS = 10


def test_no_handle_is_left_after_a_run(read_back):
    steps = (Job(read_back=read_back), process_creation.Creation())
    trial.observe("pass", steps)  # the first call loads libraries, which stay open
    before = win32.open_handles(), handles()
    for _ in range(RUNS):
        trial.observe("print(1)", steps)
    # Windows itself opens a few handles for its thread pool and tracing, but not one for each run.
    assert win32.open_handles() == before[0]
    assert handles() - before[1] < RUNS


def test_no_handle_is_left_after_a_failed_start(read_back):
    steps = (Job(read_back=read_back), process_creation.Creation())

    def fail() -> None:
        with pytest.raises(OSError, match="exec"):
            trial.observe("pass", steps, program="C:\\no-such-program.exe")

    fail()
    before = win32.open_handles(), handles()
    for _ in range(RUNS):
        fail()
    assert win32.open_handles() == before[0]
    assert handles() - before[1] < RUNS


def test_no_handle_is_left_when_a_step_fails_to_verify(read_back):
    """Make `verify` fail. At this point the process already exists and is suspended, so corral also
    has to close the process's handles.
    """
    steps = (
        Job(read_back=read_back),
        mitigations.plan(0, subprocess=False),
        process_creation.Creation(),
    )
    if read_back:
        pytest.skip("this Windows enforces the child process policy")
    before = win32.open_handles()
    with pytest.raises(OSError, match="no child processes: reads back as off"):
        trial.observe("pass", steps)
    assert win32.open_handles() == before


@pytest.mark.real_windows(reason="it accepts limits and ignores them")
def test_memory_beyond_the_limit_is_denied():
    code = (
        "bytearray(8 << 20)\ntry:\n    bytearray(256 << 20)\nexcept MemoryError:\n    print('no')"
    )
    seen = trial.observe(code, (Job(memory=MEMORY), process_creation.Creation()))
    assert seen.output == "no"
    assert "memory" in seen.reaped.hit
    assert trial.observe(code, (Job(memory=1 << 30), process_creation.Creation())).output == ""


@pytest.mark.real_windows(reason="it accepts limits and ignores them")
def test_a_second_process_does_not_start():
    code = (
        "import subprocess, sys\n"
        "try:\n    print(subprocess.call([sys.executable, '-c', 'pass']))\n"
        "except OSError:\n    print('no')"
    )
    assert trial.observe(code, (Job(processes=4), process_creation.Creation())).output == "0"
    seen = trial.observe(code, (Job(processes=1), process_creation.Creation()))
    assert seen.output == "no"
    assert "pids" in seen.reaped.hit
