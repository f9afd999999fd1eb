"""A job object: every process of the target is in it from its first instruction to its last.

All extended limits are set with one call, and every class of information is read back: a system
that accepts a limit and does not keep it has not set it. `pids` counts processes here, and memory
is what was committed: an allocation beyond the limit fails. The job has no name and is never
inherited, and the supervisor has the only handle, so the tree ends when the supervisor does.
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
# What node and python start under. Handles and global atoms are needed by USER32, which both load.
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
"""All processors together, as the CPU rate counts."""
PAGE = 4096
"""Windows keeps limits of memory in whole pages, and returns them so."""
KILLED = 0xC000013A
"""STATUS_CONTROL_C_EXIT, the exit code of no other death."""
NEAR = 32
"""A peak within this fraction of the limit has reached the limit."""
END_SECONDS = 5.0
"""How long to wait until all processes of a terminated job are gone."""
MESSAGES = {
    abi.JOB_OBJECT_MSG_ACTIVE_PROCESS_LIMIT: "pids",
    abi.JOB_OBJECT_MSG_PROCESS_MEMORY_LIMIT: "memory",
    abi.JOB_OBJECT_MSG_JOB_MEMORY_LIMIT: "memory",
}


@record
class Job:
    """`cpu` in millicores. `read_back` is False only where a probe saw the whole job die with its
    handle although the system does not return the limits that were set.
    """

    name = "job"
    memory: int | None = None
    cpu: int | None = None
    processes: int | None = None
    ui: int = 0
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
    processes = limits.pids if held.get("pids") == JOB else None
    return Job(
        memory=limits.memory if held.get("memory") == JOB else None,
        cpu=limits.cpu if held.get("cpu") == JOB else None,
        processes=1 if JOB in held.get("subprocess", "") else processes,
        ui=UI_LIMITS if UI in held.get("syscalls", "") else 0,
        read_back=held.get("tree") != UNREAD,
    )


class LimitedJob:
    """A job with its limits set."""

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
        """Return the seconds of all processes in user and kernel mode, also of ended ones."""
        seen = self.accounting()
        return float(seen.TotalUserTime + seen.TotalKernelTime) / 10_000_000

    def active(self) -> int:
        return int(self.accounting().ActiveProcesses)

    def peak(self) -> int:
        seen = abi.query_information(self.handle, abi.JOBOBJECT_EXTENDED_LIMIT_INFORMATION)
        return int(seen.PeakJobMemoryUsed)

    def reached_limits(self) -> set[str]:
        """Return the names of the limits that were reached so far.

        Messages may be lost, so a peak near its limit counts too.
        """
        while (kind := abi.next_message(self.port)) is not None:
            if kind in MESSAGES:
                self._reached.add(MESSAGES[kind])
        memory = self.step.memory
        if memory is not None and self.peak() >= memory - memory // NEAR:
            self._reached.add("memory")
        return self._reached

    def end(self) -> None:
        """Kill all processes and wait until they are gone, since they keep directories open."""
        self.terminate()
        deadline = time.monotonic() + END_SECONDS
        while self.active() and time.monotonic() < deadline:
            time.sleep(0.005)

    def release(self) -> None:
        self.handle.close()
        self.port.close()


def create(step: Job) -> LimitedJob:
    """Raise OSError if a limit cannot be set or does not read back as it was set."""
    handle = abi.create_job()
    made = LimitedJob(step, handle, abi.create_completion_port())
    try:
        wanted = extended(step)
        abi.set_information(handle, wanted)
        if step.read_back:
            abi.check_information(handle, wanted, *EXTENDED_FIELDS)
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
    wanted.BasicLimitInformation.LimitFlags = flags
    return wanted


def cpu_rate(millicores: int, processors: int) -> int:
    """Return the rate in 1/10000 of all processors; never 0, which Windows refuses."""
    return max(1, min(WHOLE, millicores * WHOLE // (1000 * processors)))
