"""Bind calls for job objects: limits, accounting and completion messages."""

import ctypes
from operator import attrgetter
from typing import TypeVar

from corral.abi.prototypes import fields
from corral.abi.win32 import (
    BOOL,
    DWORD,
    HANDLE,
    INVALID_HANDLE_VALUE,
    LARGE_INTEGER,
    LPCWSTR,
    LPVOID,
    SIZE_T,
    UINT,
    ULONG_PTR,
    ULONGLONG,
    Handle,
    kernel32,
)

JobObjectBasicAccountingInformation = 1
JobObjectBasicUIRestrictions = 4
JobObjectAssociateCompletionPortInformation = 7
JobObjectExtendedLimitInformation = 9
JobObjectCpuRateControlInformation = 15

JOB_OBJECT_LIMIT_JOB_TIME = 0x4
JOB_OBJECT_LIMIT_ACTIVE_PROCESS = 0x8
JOB_OBJECT_LIMIT_PRIORITY_CLASS = 0x20
JOB_OBJECT_LIMIT_SCHEDULING_CLASS = 0x80
NORMAL_PRIORITY_CLASS = 0x20
JOB_OBJECT_LIMIT_PROCESS_MEMORY = 0x100
JOB_OBJECT_LIMIT_JOB_MEMORY = 0x200
JOB_OBJECT_LIMIT_DIE_ON_UNHANDLED_EXCEPTION = 0x400
JOB_OBJECT_LIMIT_BREAKAWAY_OK = 0x800
JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK = 0x1000
JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE = 0x2000

JOB_OBJECT_CPU_RATE_CONTROL_ENABLE = 0x1
JOB_OBJECT_CPU_RATE_CONTROL_HARD_CAP = 0x4

JOB_OBJECT_UILIMIT_READCLIPBOARD = 0x2
JOB_OBJECT_UILIMIT_WRITECLIPBOARD = 0x4
JOB_OBJECT_UILIMIT_SYSTEMPARAMETERS = 0x8
JOB_OBJECT_UILIMIT_DISPLAYSETTINGS = 0x10
JOB_OBJECT_UILIMIT_DESKTOP = 0x40
JOB_OBJECT_UILIMIT_EXITWINDOWS = 0x80

JOB_OBJECT_MSG_ACTIVE_PROCESS_LIMIT = 3
JOB_OBJECT_MSG_NEW_PROCESS = 6
JOB_OBJECT_MSG_PROCESS_MEMORY_LIMIT = 9
JOB_OBJECT_MSG_JOB_MEMORY_LIMIT = 10


class IO_COUNTERS(ctypes.Structure):
    _fields_ = (
        *fields(ULONGLONG, "ReadOperationCount WriteOperationCount OtherOperationCount"),
        *fields(ULONGLONG, "ReadTransferCount WriteTransferCount OtherTransferCount"),
    )


class JOBOBJECT_BASIC_LIMIT_INFORMATION(ctypes.Structure):
    _fields_ = (
        *fields(LARGE_INTEGER, "PerProcessUserTimeLimit PerJobUserTimeLimit"),
        ("LimitFlags", DWORD),
        *fields(SIZE_T, "MinimumWorkingSetSize MaximumWorkingSetSize"),
        ("ActiveProcessLimit", DWORD),
        ("Affinity", ULONG_PTR),
        *fields(DWORD, "PriorityClass SchedulingClass"),
    )


class JOBOBJECT_EXTENDED_LIMIT_INFORMATION(ctypes.Structure):
    _fields_ = (
        ("BasicLimitInformation", JOBOBJECT_BASIC_LIMIT_INFORMATION),
        ("IoInfo", IO_COUNTERS),
        *fields(SIZE_T, "ProcessMemoryLimit JobMemoryLimit"),
        *fields(SIZE_T, "PeakProcessMemoryUsed PeakJobMemoryUsed"),
    )


class _Rate(ctypes.Union):
    _fields_ = (("CpuRate", DWORD), ("Weight", DWORD))


class JOBOBJECT_CPU_RATE_CONTROL_INFORMATION(ctypes.Structure):
    _anonymous_ = ("rate",)
    _fields_ = (("ControlFlags", DWORD), ("rate", _Rate))


class JOBOBJECT_BASIC_UI_RESTRICTIONS(ctypes.Structure):
    _fields_ = (("UIRestrictionsClass", DWORD),)


class JOBOBJECT_ASSOCIATE_COMPLETION_PORT(ctypes.Structure):
    _fields_ = (("CompletionKey", LPVOID), ("CompletionPort", HANDLE))


class JOBOBJECT_BASIC_ACCOUNTING_INFORMATION(ctypes.Structure):
    _fields_ = (
        *fields(LARGE_INTEGER, "TotalUserTime TotalKernelTime"),
        *fields(LARGE_INTEGER, "ThisPeriodTotalUserTime ThisPeriodTotalKernelTime"),
        *fields(DWORD, "TotalPageFaultCount TotalProcesses ActiveProcesses"),
        ("TotalTerminatedProcesses", DWORD),
    )


CreateJobObjectW = kernel32("CreateJobObjectW", HANDLE, LPVOID, LPCWSTR)
SetInformationJobObject = kernel32(
    "SetInformationJobObject", BOOL, HANDLE, ctypes.c_int32, LPVOID, DWORD
)
QueryInformationJobObject = kernel32(
    "QueryInformationJobObject", BOOL, HANDLE, ctypes.c_int32, LPVOID, DWORD, LPVOID
)
AssignProcessToJobObject = kernel32("AssignProcessToJobObject", BOOL, HANDLE, HANDLE)
TerminateJobObject = kernel32("TerminateJobObject", BOOL, HANDLE, UINT)
IsProcessInJob = kernel32("IsProcessInJob", BOOL, HANDLE, HANDLE, LPVOID)
CreateIoCompletionPort = kernel32(
    "CreateIoCompletionPort", HANDLE, HANDLE, HANDLE, ULONG_PTR, DWORD
)
GetQueuedCompletionStatus = kernel32(
    "GetQueuedCompletionStatus", BOOL, HANDLE, LPVOID, LPVOID, LPVOID, DWORD
)

# The information class that each structure needs in calls that query or set a job.
_CLASSES: dict[type[ctypes.Structure], int] = {
    JOBOBJECT_BASIC_ACCOUNTING_INFORMATION: JobObjectBasicAccountingInformation,
    JOBOBJECT_BASIC_UI_RESTRICTIONS: JobObjectBasicUIRestrictions,
    JOBOBJECT_ASSOCIATE_COMPLETION_PORT: JobObjectAssociateCompletionPortInformation,
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION: JobObjectExtendedLimitInformation,
    JOBOBJECT_CPU_RATE_CONTROL_INFORMATION: JobObjectCpuRateControlInformation,
}
Information = TypeVar("Information", bound=ctypes.Structure)


def create_job() -> Handle:
    """Create an unnamed job, which other processes can neither open nor inherit."""
    return Handle(CreateJobObjectW(None, None))


def set_information(job: Handle, information: ctypes.Structure) -> None:
    kind = _CLASSES[type(information)]
    SetInformationJobObject(job.value, kind, ctypes.byref(information), ctypes.sizeof(information))


def check_information(job: Handle, wanted: ctypes.Structure, *names: str) -> None:
    """Read the fields of a job that `names` lists. Raise OSError if one of them differs from the
    same field of `wanted`.
    """
    found = query_information(job, type(wanted))
    for name in names:
        asked, seen = map(attrgetter(name), (wanted, found))
        if asked != seen:
            field = name.rpartition(".")[2]
            raise OSError(0, f"{field} was set to {asked:#x}, but reads back as {seen:#x}")


def query_information(job: Handle, kind: type[Information]) -> Information:
    found = kind()
    QueryInformationJobObject(
        job.value, _CLASSES[kind], ctypes.byref(found), ctypes.sizeof(found), None
    )
    return found


def is_in_job(process: int, job: Handle | None) -> bool:
    """Return whether a process is in this job, or in any job if `job` is None."""
    answer = BOOL()
    IsProcessInJob(process, None if job is None else job.value, ctypes.byref(answer))
    return bool(answer.value)


def create_completion_port() -> Handle:
    return Handle(CreateIoCompletionPort(INVALID_HANDLE_VALUE, None, 0, 1))


def next_message(port: Handle) -> int | None:
    """Return the kind of a job's next message, or None if no message is waiting."""
    kind, key, overlapped = DWORD(), ctypes.c_size_t(), ctypes.c_void_p()
    try:
        GetQueuedCompletionStatus(
            port.value, ctypes.byref(kind), ctypes.byref(key), ctypes.byref(overlapped), 0
        )
    except OSError:
        return None  # WAIT_TIMEOUT
    return kind.value
