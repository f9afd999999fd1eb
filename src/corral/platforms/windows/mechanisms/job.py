"""Limit the target with a job object that contains all its processes from their first instruction.

Limits are read back, because a system may accept a limit without setting it. corral skips this only
on a host that cannot read them back (`Job.read_back`). On Windows `pids` limits processes, not
threads. The memory limit is for committed memory, and an allocation beyond it fails.

The job has no name, and its handle is never inherited, so only the supervisor has a handle. When
the supervisor ends, Windows closes this last handle and then ends all processes of the job.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from corral.abi import win32_job as abi
from corral.abi.win32 import Handle
from corral.abi.win32_process import Process, processors
from corral.plan import model
from corral.plan.model import Results
from corral.policy.model import Policy
from corral.record import record

JOB = "job object"
UNREAD = "job object (not read back)"
UI = "ui restrictions"
PRIORITY = "priority"
# node and python start under these limits. USER handles and global atoms are not limited, because
# node and python load USER32, which needs them.
UI_LIMITS = (
    abi.JOB_OBJECT_UILIMIT_READCLIPBOARD
    | abi.JOB_OBJECT_UILIMIT_WRITECLIPBOARD
    | abi.JOB_OBJECT_UILIMIT_SYSTEMPARAMETERS
    | abi.JOB_OBJECT_UILIMIT_DISPLAYSETTINGS
    | abi.JOB_OBJECT_UILIMIT_DESKTOP
    | abi.JOB_OBJECT_UILIMIT_EXITWINDOWS
)
EXTENDED_FIELDS = (
    "BasicLimitInformation.ActiveProcessLimit",
    "JobMemoryLimit",
    "ProcessMemoryLimit",
    "BasicLimitInformation.LimitFlags",
)
HARD_CAP = abi.JOB_OBJECT_CPU_RATE_CONTROL_ENABLE | abi.JOB_OBJECT_CPU_RATE_CONTROL_HARD_CAP
WHOLE = 10_000
"""The CPU rate of all processors together, in units of 1/10000."""
SCHEDULING_CLASS = 5
"""The default scheduling class. The classes are 0 to 9."""
TICKS_PER_MS = 10_000
CONSOLE = 1
"""The number of processes that a console needs. It is added to the process limit only if the target
may start processes, because other targets have no console.
"""
PAGE = 4096
"""Windows rounds memory limits down to whole pages."""
KILLED = 0xC000013A
"""STATUS_CONTROL_C_EXIT, the exit code that marks processes killed by corral."""
NEAR = 32
"""A memory peak within 1/32 of the limit counts as having reached the limit."""
END_SECONDS = 5.0
"""The longest time to wait for the processes of a terminated job to end."""
MESSAGES = {
    abi.JOB_OBJECT_MSG_ACTIVE_PROCESS_LIMIT: "pids",
    abi.JOB_OBJECT_MSG_PROCESS_MEMORY_LIMIT: "memory",
    abi.JOB_OBJECT_MSG_JOB_MEMORY_LIMIT: "memory",
}


@record
class Job:
    name = "job"
    memory: int | None = None  # bytes
    cpu: int | None = None  # millicores
    processes: int | None = None
    # The maximum CPU time in user mode, in milliseconds. Windows itself ends a job that exceeds it,
    # even while the supervisor is suspended or busy.
    user_time: int | None = None
    priority: bool = False  # keep the target from changing its priority and scheduling class
    ui: int = 0
    # False only if this host cannot read back a job's limits. Because corral then cannot check the
    # job, a probe must have shown on this host that closing a job's handle ends all its processes.
    read_back: bool = True
    stage: model.Stage = "supervisor"

    def describe(self) -> str:
        asked = ["kills the tree when the supervisor ends", "no breakaway"]
        if self.processes is not None:
            asked.append(f"{self.processes} process" + ("es" if self.processes > 1 else ""))
        if self.memory is not None:
            asked.append(f"{self.memory} bytes committed")
        if self.cpu is not None:
            asked.append(f"{self.cpu} millicores")
        if self.user_time is not None:
            asked.append(f"{self.user_time} ms of user time")
        if self.priority:
            asked.append("normal priority and scheduling class")
        if self.ui:
            asked.append("no clipboard, desktops, display or system settings")
        back = "each read back" if self.read_back else "not read back"
        return f"job object, {back}: {', '.join(asked)}"

    def apply(self, results: Results) -> None:
        results.add(create(self))

    def verify(self, results: Results) -> None:
        process = results.get(Process)
        if not abi.is_in_job(process.handle.value, results.get(LimitedJob).handle):
            raise OSError(0, "the process is not in its job")


def plan(policy: Policy, controls: Sequence[model.Held]) -> Job:
    held = {item.control: item.mechanism for item in controls}
    limits = policy.limits
    processes = limits.pids + CONSOLE if limits.pids and held.get("pids") == JOB else None
    read_back = held.get("tree") != UNREAD
    return Job(
        memory=limits.memory if held.get("memory") == JOB else None,
        cpu=limits.cpu if held.get("cpu") == JOB else None,
        processes=1 if JOB in held.get("subprocess", "") else processes,
        user_time=limits.cpu_time if read_back and held.get("cpu_time") else None,
        priority=PRIORITY in held.get("syscalls", ""),
        ui=UI_LIMITS if UI in held.get("syscalls", "") else 0,
        read_back=read_back,
    )


class LimitedJob:
    """A job with its limits. `port` receives the job's messages about reached limits."""

    def __init__(self, step: Job, handle: Handle, port: Handle) -> None:
        self.step = step
        self.handle = handle
        self.port = port
        self._reached: set[str] = set()

    def terminate(self) -> None:
        abi.TerminateJobObject(self.handle.value, KILLED)

    def accounting(self) -> abi.JOBOBJECT_BASIC_ACCOUNTING_INFORMATION:
        return abi.query_information(self.handle, abi.JOBOBJECT_BASIC_ACCOUNTING_INFORMATION)

    def cpu(self) -> float:
        """Return the CPU seconds of all processes, including those that have ended."""
        seen = self.accounting()
        return float(seen.TotalUserTime + seen.TotalKernelTime) / 10_000_000

    def active(self) -> int:
        return int(self.accounting().ActiveProcesses)

    def peak(self) -> int:
        seen = abi.query_information(self.handle, abi.JOBOBJECT_EXTENDED_LIMIT_INFORMATION)
        return int(seen.PeakJobMemoryUsed)

    def reached_limits(self) -> set[str]:
        """Return the names of the limits that have been reached. A memory peak near the limit
        counts too, because the job's message about it may be lost.
        """
        while (kind := abi.next_message(self.port)) is not None:
            if kind in MESSAGES:
                self._reached.add(MESSAGES[kind])
        limit = self.step.user_time
        if limit is not None and self.accounting().TotalUserTime >= limit * TICKS_PER_MS:
            self._reached.add("cpu_time")
        memory = self.step.memory
        if memory is not None and self.peak() >= memory - memory // NEAR:
            self._reached.add("memory")
        return self._reached

    def end(self) -> None:
        """Kill all processes, and wait up to END_SECONDS until they have ended. Until then they may
        keep directories open that corral has to remove.
        """
        self.terminate()
        deadline = time.monotonic() + END_SECONDS
        while self.active() and time.monotonic() < deadline:
            time.sleep(0.005)

    def release(self) -> None:
        self.handle.close()
        self.port.close()


def create(step: Job) -> LimitedJob:
    """Create a job. Raise OSError if a limit cannot be set or reads back differently."""
    handle = abi.create_job()
    made = LimitedJob(step, handle, abi.create_completion_port())
    try:
        wanted = extended(step)
        abi.set_information(handle, wanted)
        if step.read_back:
            abi.check_information(handle, wanted, *fields_to_read(step))
        if step.cpu is not None:
            rate = abi.JOBOBJECT_CPU_RATE_CONTROL_INFORMATION(ControlFlags=HARD_CAP)
            rate.CpuRate = cpu_rate(step.cpu, processors())
            abi.set_information(handle, rate)
            abi.check_information(handle, rate, "ControlFlags", "CpuRate")
        if step.ui:
            limits = abi.JOBOBJECT_BASIC_UI_RESTRICTIONS(step.ui)
            abi.set_information(handle, limits)
            abi.check_information(handle, limits, "UIRestrictionsClass")
        abi.set_information(handle, abi.JOBOBJECT_ASSOCIATE_COMPLETION_PORT(None, made.port.value))
    except OSError:
        made.release()
        raise
    return made


def extended(step: Job) -> abi.JOBOBJECT_EXTENDED_LIMIT_INFORMATION:
    wanted = abi.JOBOBJECT_EXTENDED_LIMIT_INFORMATION()
    flags = abi.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE | abi.JOB_OBJECT_LIMIT_DIE_ON_UNHANDLED_EXCEPTION
    if step.processes is not None:
        flags |= abi.JOB_OBJECT_LIMIT_ACTIVE_PROCESS
        wanted.BasicLimitInformation.ActiveProcessLimit = step.processes
    if step.memory is not None:
        flags |= abi.JOB_OBJECT_LIMIT_JOB_MEMORY | abi.JOB_OBJECT_LIMIT_PROCESS_MEMORY
        wanted.JobMemoryLimit = wanted.ProcessMemoryLimit = step.memory // PAGE * PAGE
    if step.user_time is not None:
        flags |= abi.JOB_OBJECT_LIMIT_JOB_TIME
        wanted.BasicLimitInformation.PerJobUserTimeLimit = step.user_time * TICKS_PER_MS
    if step.priority:
        flags |= abi.JOB_OBJECT_LIMIT_PRIORITY_CLASS | abi.JOB_OBJECT_LIMIT_SCHEDULING_CLASS
        wanted.BasicLimitInformation.PriorityClass = abi.NORMAL_PRIORITY_CLASS
        wanted.BasicLimitInformation.SchedulingClass = SCHEDULING_CLASS
    wanted.BasicLimitInformation.LimitFlags = flags
    return wanted


def fields_to_read(step: Job) -> tuple[str, ...]:
    """Return the fields to read back. Leave out the CPU time, the priority and the scheduling class
    if corral has not set them, because Windows may return default values for them.
    """
    more = ["PerJobUserTimeLimit"] if step.user_time is not None else []
    more += ["PriorityClass", "SchedulingClass"] if step.priority else []
    return (*(f"BasicLimitInformation.{name}" for name in more), *EXTENDED_FIELDS)


def cpu_rate(millicores: int, processors: int) -> int:
    """Convert a CPU limit in millicores to the job's unit, 1/10000 of the time of all processors
    together. Return at least 1, because Windows refuses 0.
    """
    return max(1, min(WHOLE, millicores * WHOLE // (1000 * processors)))
