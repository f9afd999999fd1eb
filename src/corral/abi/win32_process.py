"""Bind calls that create processes, wait for them, and measure their resource usage.

Callbacks are declared with CFUNCTYPE, which every system has. WINFUNCTYPE is not needed, because
64-bit Windows has a single calling convention.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Self

from corral.abi.prototypes import fields
from corral.abi.win32 import (
    BOOL,
    DWORD,
    DWORD_PTR,
    HANDLE,
    LARGE_INTEGER,
    LONG,
    LPCWSTR,
    LPVOID,
    LPWSTR,
    NTSTATUS,
    SIZE_T,
    UINT,
    ULONG,
    ULONG_PTR,
    ULONGLONG,
    WCHAR,
    WORD,
    Handle,
    advapi32,
    function,
    kernel32,
)

CREATE_SUSPENDED = 0x4
DETACHED_PROCESS = 0x8
CREATE_UNICODE_ENVIRONMENT = 0x400
EXTENDED_STARTUPINFO_PRESENT = 0x80000
CREATE_NO_WINDOW = 0x8000000
STARTF_USESTDHANDLES = 0x100
PROC_THREAD_ATTRIBUTE_HANDLE_LIST = 0x20002
PROC_THREAD_ATTRIBUTE_SECURITY_CAPABILITIES = 0x20009
PROC_THREAD_ATTRIBUTE_JOB_LIST = 0x2000D

PROCESS_QUERY_LIMITED_INFORMATION = 0x1000
SYNCHRONIZE = 0x100000
DUPLICATE_SAME_ACCESS = 0x2
WAIT_OBJECT_0 = 0
WAIT_TIMEOUT = 258
INFINITE = 0xFFFFFFFF
FILE_TYPE_DISK = 1
FILE_TYPE_CHAR = 2
FILE_TYPE_PIPE = 3
CTRL_C_EVENT = 0
CTRL_BREAK_EVENT = 1
CTRL_CLOSE_EVENT = 2
CTRL_LOGOFF_EVENT = 5
CTRL_SHUTDOWN_EVENT = 6
ALL_PROCESSOR_GROUPS = 0xFFFF
MAX_PATH = 260
TH32CS_SNAPPROCESS = 0x2
SystemTimeOfDayInformation = 3  # SYSTEM_INFORMATION_CLASS


class STARTUPINFOW(ctypes.Structure):
    _fields_ = (
        ("cb", DWORD),
        *fields(LPWSTR, "lpReserved lpDesktop lpTitle"),
        *fields(
            DWORD, "dwX dwY dwXSize dwYSize dwXCountChars dwYCountChars dwFillAttribute dwFlags"
        ),
        *fields(WORD, "wShowWindow cbReserved2"),
        ("lpReserved2", LPVOID),
        *fields(HANDLE, "hStdInput hStdOutput hStdError"),
    )


class STARTUPINFOEXW(ctypes.Structure):
    _fields_ = (("StartupInfo", STARTUPINFOW), ("lpAttributeList", LPVOID))


class PROCESS_INFORMATION(ctypes.Structure):
    _fields_ = (*fields(HANDLE, "hProcess hThread"), *fields(DWORD, "dwProcessId dwThreadId"))


class PROCESS_MEMORY_COUNTERS(ctypes.Structure):
    _fields_ = (
        *fields(DWORD, "cb PageFaultCount"),
        *fields(SIZE_T, "PeakWorkingSetSize WorkingSetSize QuotaPeakPagedPoolUsage"),
        *fields(SIZE_T, "QuotaPagedPoolUsage QuotaPeakNonPagedPoolUsage QuotaNonPagedPoolUsage"),
        *fields(SIZE_T, "PagefileUsage PeakPagefileUsage"),
    )


class PROCESSENTRY32W(ctypes.Structure):
    _fields_ = (
        *fields(DWORD, "dwSize cntUsage th32ProcessID"),
        ("th32DefaultHeapID", ULONG_PTR),
        *fields(DWORD, "th32ModuleID cntThreads th32ParentProcessID"),
        ("pcPriClassBase", LONG),
        ("dwFlags", DWORD),
        ("szExeFile", WCHAR * MAX_PATH),
    )


_CREATION = (LPCWSTR, LPVOID, LPVOID, LPVOID, BOOL, DWORD, LPVOID, LPCWSTR, LPVOID, LPVOID)
CreateProcessW = kernel32("CreateProcessW", BOOL, *_CREATION)
CreateProcessAsUserW = advapi32("CreateProcessAsUserW", BOOL, HANDLE, *_CREATION)
InitializeProcThreadAttributeList = kernel32(
    "InitializeProcThreadAttributeList", BOOL, LPVOID, DWORD, DWORD, LPVOID
)
UpdateProcThreadAttribute = kernel32(
    "UpdateProcThreadAttribute", BOOL, LPVOID, DWORD, DWORD_PTR, LPVOID, SIZE_T, LPVOID, LPVOID
)
DeleteProcThreadAttributeList = kernel32("DeleteProcThreadAttributeList", None, LPVOID, check="any")
ResumeThread = kernel32("ResumeThread", DWORD, HANDLE, check="valid")
TerminateProcess = kernel32("TerminateProcess", BOOL, HANDLE, UINT)
GetExitCodeProcess = kernel32("GetExitCodeProcess", BOOL, HANDLE, LPVOID)
OpenProcess = kernel32("OpenProcess", HANDLE, DWORD, BOOL, DWORD)
GetCurrentProcess = kernel32("GetCurrentProcess", HANDLE, check="any")
DuplicateHandle = kernel32(
    "DuplicateHandle", BOOL, HANDLE, HANDLE, HANDLE, LPVOID, DWORD, BOOL, DWORD
)
WaitForMultipleObjects = kernel32(
    "WaitForMultipleObjects", DWORD, DWORD, LPVOID, BOOL, DWORD, check="valid"
)
CreateEventW = kernel32("CreateEventW", HANDLE, LPVOID, BOOL, BOOL, LPCWSTR)
SetEvent = kernel32("SetEvent", BOOL, HANDLE)
ResetEvent = kernel32("ResetEvent", BOOL, HANDLE)
SetConsoleCtrlHandler = kernel32("SetConsoleCtrlHandler", BOOL, LPVOID, BOOL)
GetFileType = kernel32("GetFileType", DWORD, HANDLE, check="any")
GetProcessTimes = kernel32("GetProcessTimes", BOOL, HANDLE, LPVOID, LPVOID, LPVOID, LPVOID)
K32GetProcessMemoryInfo = kernel32("K32GetProcessMemoryInfo", BOOL, HANDLE, LPVOID, DWORD)
ProcessIdToSessionId = kernel32("ProcessIdToSessionId", BOOL, DWORD, LPVOID)
GetSystemWindowsDirectoryW = kernel32("GetSystemWindowsDirectoryW", UINT, LPVOID, UINT)
GetActiveProcessorCount = kernel32("GetActiveProcessorCount", DWORD, WORD)
CreateToolhelp32Snapshot = kernel32("CreateToolhelp32Snapshot", HANDLE, DWORD, DWORD, check="valid")
Process32FirstW = kernel32("Process32FirstW", BOOL, HANDLE, LPVOID)
Process32NextW = kernel32("Process32NextW", BOOL, HANDLE, LPVOID)
NtQuerySystemInformation = function(
    "ntdll", "NtQuerySystemInformation", NTSTATUS, DWORD, LPVOID, ULONG, LPVOID, check="ntstatus"
)

_HANDLER = ctypes.CFUNCTYPE(BOOL, DWORD)


class Attributes:
    """An attribute list for a new process, with the memory that it points to."""

    def __init__(self, count: int) -> None:
        size = SIZE_T()
        try:
            InitializeProcThreadAttributeList(None, count, 0, ctypes.byref(size))
        except OSError:
            # This call has no buffer, so it always fails, but it should return the needed size.
            # If there is no size, the call has failed for another reason.
            if not size.value:
                raise
        self._list = ctypes.create_string_buffer(size.value)
        InitializeProcThreadAttributeList(self._list, count, 0, ctypes.byref(size))
        self._kept: list[object] = []

    def add(
        self, attribute: int, value: ctypes.Structure | ctypes.Array[HANDLE] | DWORD | ULONGLONG
    ) -> None:
        self._kept.append(value)
        size = ctypes.sizeof(value)
        UpdateProcThreadAttribute(self._list, 0, attribute, ctypes.byref(value), size, None, None)

    def add_handles(self, attribute: int, handles: Sequence[int]) -> None:
        self.add(attribute, (HANDLE * len(handles))(*handles))

    def add_number(self, attribute: int, number: int, size: int) -> None:
        """Add an integer to the attribute list. `size` is its size in bytes, 4 or 8."""
        self.add(attribute, DWORD(number) if size == ctypes.sizeof(DWORD) else ULONGLONG(number))

    @property
    def address(self) -> int:
        return ctypes.addressof(self._list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        DeleteProcThreadAttributeList(self._list)


class Process:
    def __init__(self, made: PROCESS_INFORMATION) -> None:
        self.pid: int = made.dwProcessId
        self.handle = Handle(made.hProcess)
        self._thread = Handle(made.hThread)

    def resume(self) -> None:
        with self._thread:
            ResumeThread(self._thread.value)

    def release(self) -> None:
        self._thread.close()
        self.handle.close()


def create_process(
    token: Handle | None,
    *,
    application: str,
    command_line: str,
    environment: bytes,
    directory: str,
    desktop: str,
    stdio: tuple[int, int, int],
    flags: int,
    attributes: Attributes,
) -> Process:
    """Create a process with `token`, or with this process's token if `token` is None. The handles
    in `stdio` must be inheritable.
    """
    start = STARTUPINFOEXW()
    start.StartupInfo.cb = ctypes.sizeof(start)
    start.StartupInfo.lpDesktop = desktop or None
    start.StartupInfo.dwFlags = STARTF_USESTDHANDLES
    start.StartupInfo.hStdInput, start.StartupInfo.hStdOutput, start.StartupInfo.hStdError = stdio
    start.lpAttributeList = attributes.address
    made = PROCESS_INFORMATION()
    # The command line must be in a writable buffer, because CreateProcessW writes into it.
    line = ctypes.create_unicode_buffer(command_line)
    rest = (
        application, line, None, None, 1,
        flags | EXTENDED_STARTUPINFO_PRESENT | CREATE_UNICODE_ENVIRONMENT,
        environment, directory or None, ctypes.byref(start), ctypes.byref(made),
    )  # fmt: skip
    if token is None:
        CreateProcessW(*rest)
    else:
        CreateProcessAsUserW(token.value, *rest)
    return Process(made)


def duplicate(handle: int, *, inheritable: bool) -> Handle:
    own, made = GetCurrentProcess(), HANDLE()
    DuplicateHandle(
        own, handle, own, ctypes.byref(made), 0, int(inheritable), DUPLICATE_SAME_ACCESS
    )
    return Handle(made.value or 0)


def open_process(pid: int, access: int) -> Handle:
    return Handle(OpenProcess(access, 0, pid))


def exit_code(process: int) -> int:
    code = DWORD()
    GetExitCodeProcess(process, ctypes.byref(code))
    return code.value


def wait_any(handles: Sequence[int], milliseconds: int | None) -> int | None:
    """Return the index of the first signalled handle, or None after the timeout."""
    array = (HANDLE * len(handles))(*handles)
    timeout = INFINITE if milliseconds is None else milliseconds
    found = WaitForMultipleObjects(len(handles), array, 0, timeout)
    return None if found == WAIT_TIMEOUT else found - WAIT_OBJECT_0


def create_event() -> Handle:
    """Create a manual-reset event, which is not set yet."""
    return Handle(CreateEventW(None, 1, 0, None))


def on_console_event(handle: Callable[[int], bool]) -> object:
    """Make Windows call `handle` in another thread for each console event. The caller must keep the
    returned object alive.
    """
    callback = _HANDLER(lambda event: int(handle(event)))
    SetConsoleCtrlHandler(callback, 1)
    return callback


def ignore_console_events(callback: object) -> None:
    SetConsoleCtrlHandler(callback, 0)


def cpu_seconds(process: Handle) -> float:
    created, ended, kernel, user = (ULONGLONG() for _ in range(4))
    GetProcessTimes(process.value, *map(ctypes.byref, (created, ended, kernel, user)))
    return (kernel.value + user.value) / 10_000_000


def committed_bytes(process: Handle) -> int:
    """Return how much private memory a process has committed. A job's memory limit counts the same
    bytes.
    """
    found = PROCESS_MEMORY_COUNTERS()
    K32GetProcessMemoryInfo(process.value, ctypes.byref(found), ctypes.sizeof(found))
    return int(found.PagefileUsage)


def boot_time() -> int:
    """Return a number that changes with each boot, but not when the clock is set."""
    # SYSTEM_TIMEOFDAY_INFORMATION contains BootTime at offset 0 and BootTimeBias at offset 32. The
    # headers do not declare these fields. Setting the clock changes both by the same amount,
    # so their difference stays the same until the next boot.
    found = (LARGE_INTEGER * 6)()
    NtQuerySystemInformation(
        SystemTimeOfDayInformation, ctypes.byref(found), ctypes.sizeof(found), None
    )
    return int(found[0] - found[4])


def session_of(pid: int) -> int:
    found = DWORD()
    ProcessIdToSessionId(pid, ctypes.byref(found))
    return found.value


def windows_directory() -> str:
    buffer = ctypes.create_unicode_buffer(MAX_PATH)
    GetSystemWindowsDirectoryW(buffer, MAX_PATH)
    return buffer.value


def processors() -> int:
    return GetActiveProcessorCount(ALL_PROCESSOR_GROUPS)


def parents() -> dict[int, int]:
    """Return {pid: parent's pid} for all processes on the system. The parent may have ended."""
    found: dict[int, int] = {}
    entry = PROCESSENTRY32W(dwSize=ctypes.sizeof(PROCESSENTRY32W))
    with Handle(CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0)) as snapshot:
        following = Process32FirstW
        while True:
            try:
                following(snapshot.value, ctypes.byref(entry))
            except OSError:
                return found  # ERROR_NO_MORE_FILES
            found[entry.th32ProcessID] = entry.th32ParentProcessID
            following = Process32NextW
