"""Files by handle: opened without following links, asked who they are; and named mutexes."""

from __future__ import annotations

import ctypes

from corral.abi.win32 import (
    BOOL,
    BYTE,
    DWORD,
    HANDLE,
    LPCWSTR,
    LPVOID,
    ULONGLONG,
    WCHAR,
    Handle,
    function,
)
from corral.abi.win32_token import SECURITY_ATTRIBUTES, SecurityDescriptor

READ_CONTROL = 0x00020000
WRITE_DAC = 0x00040000
FILE_READ_ATTRIBUTES = 0x80
FILE_SHARE_READ = 0x1
FILE_SHARE_WRITE = 0x2
FILE_SHARE_DELETE = 0x4
OPEN_EXISTING = 3
FILE_FLAG_BACKUP_SEMANTICS = 0x02000000
FILE_FLAG_OPEN_REPARSE_POINT = 0x00200000
FILE_ATTRIBUTE_DIRECTORY = 0x10
FILE_ATTRIBUTE_REPARSE_POINT = 0x400
WAIT_TIMEOUT = 258
UNICODE_STRING_MAX_CHARS = 32767  # of a path too

# FILE_INFO_BY_HANDLE_CLASS
FileIdInfo = 18


class FILETIME(ctypes.Structure):
    _fields_ = (("dwLowDateTime", DWORD), ("dwHighDateTime", DWORD))


class BY_HANDLE_FILE_INFORMATION(ctypes.Structure):
    _fields_ = (
        ("dwFileAttributes", DWORD),
        ("ftCreationTime", FILETIME),
        ("ftLastAccessTime", FILETIME),
        ("ftLastWriteTime", FILETIME),
        ("dwVolumeSerialNumber", DWORD),
        ("nFileSizeHigh", DWORD),
        ("nFileSizeLow", DWORD),
        ("nNumberOfLinks", DWORD),
        ("nFileIndexHigh", DWORD),
        ("nFileIndexLow", DWORD),
    )


class FILE_ID_128(ctypes.Structure):
    _fields_ = (("Identifier", BYTE * 16),)


class FILE_ID_INFO(ctypes.Structure):
    _fields_ = (("VolumeSerialNumber", ULONGLONG), ("FileId", FILE_ID_128))


CreateFileW = function(
    "kernel32", "CreateFileW", HANDLE,
    LPCWSTR, DWORD, DWORD, LPVOID, DWORD, DWORD, HANDLE, check="valid",
)  # fmt: skip
GetFileInformationByHandle = function(
    "kernel32", "GetFileInformationByHandle", BOOL, HANDLE, LPVOID
)
GetFileInformationByHandleEx = function(
    "kernel32", "GetFileInformationByHandleEx", BOOL, HANDLE, DWORD, LPVOID, DWORD
)
GetFinalPathNameByHandleW = function(
    "kernel32", "GetFinalPathNameByHandleW", DWORD, HANDLE, LPVOID, DWORD, DWORD
)
CreateMutexW = function("kernel32", "CreateMutexW", HANDLE, LPVOID, BOOL, LPCWSTR)
ReleaseMutex = function("kernel32", "ReleaseMutex", BOOL, HANDLE)
WaitForSingleObject = function(
    "kernel32", "WaitForSingleObject", DWORD, HANDLE, DWORD, check="valid"
)


def open_itself(path: str, *, access: int = READ_CONTROL | WRITE_DAC) -> Handle:
    """The very file or directory of this name, and never what a link in its place leads to."""
    return Handle(
        CreateFileW(
            path,
            access | FILE_READ_ATTRIBUTES,
            FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
            None,
            OPEN_EXISTING,
            FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT,
            None,
        )
    )


def information(handle: int) -> tuple[int, int, tuple[int, int]]:
    """(attributes, number of links, (volume serial number, file index))."""
    found = BY_HANDLE_FILE_INFORMATION()
    GetFileInformationByHandle(handle, ctypes.byref(found))
    index = found.nFileIndexHigh << 32 | found.nFileIndexLow
    return found.dwFileAttributes, found.nNumberOfLinks, (found.dwVolumeSerialNumber, index)


def wide_identity(handle: int) -> tuple[int, int]:
    """(volume, file) in the wide form that Python 3.12 and later show as st_dev and st_ino."""
    found = FILE_ID_INFO()
    GetFileInformationByHandleEx(handle, FileIdInfo, ctypes.byref(found), ctypes.sizeof(found))
    return int(found.VolumeSerialNumber), int.from_bytes(bytes(found.FileId.Identifier), "little")


def final_path(handle: int) -> str:
    r"""Where the object lies by now, links on the way resolved, as `\\?\C:\...`."""
    buffer = (WCHAR * (UNICODE_STRING_MAX_CHARS + 1))()
    length = GetFinalPathNameByHandleW(handle, buffer, len(buffer), 0)
    return ctypes.string_at(buffer, 2 * length).decode("utf-16-le", "surrogatepass")


class Mutex:
    """A named mutex of this session, held inside `with`. A holder that died has let go of it.

    `patience` in milliseconds is for one that does not: any program of the user's can take a name.
    """

    __slots__ = ("_handle", "_name", "_patience")

    def __init__(self, name: str, patience: int = 600_000) -> None:
        self._name = name
        self._patience = patience
        self._handle = Handle(CreateMutexW(None, 0, name))

    def __enter__(self) -> None:
        try:
            if WaitForSingleObject(self._handle.value, self._patience) == WAIT_TIMEOUT:
                raise OSError(0, "another process does not let go of it", self._name)
        except OSError:
            self._handle.close()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            ReleaseMutex(self._handle.value)
        finally:
            self._handle.close()


CreateDirectoryW = function("kernel32", "CreateDirectoryW", BOOL, LPCWSTR, LPVOID)


def create_directory(path: str, security: str) -> None:
    """`security` as SDDL. Fails if something is there."""
    with SecurityDescriptor(security) as descriptor:
        attributes = SECURITY_ATTRIBUTES(ctypes.sizeof(SECURITY_ATTRIBUTES), descriptor.address, 0)
        CreateDirectoryW(path, ctypes.byref(attributes))
