"""Bind calls for files and mutexes. If a path is a link, the link itself is opened."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from corral.abi.prototypes import fields
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
    kernel32,
)
from corral.abi.win32_process import wait_any
from corral.abi.win32_token import security_attributes

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
UNICODE_STRING_MAX_CHARS = 32767  # also the maximum length of a path, in characters

# FILE_INFO_BY_HANDLE_CLASS
FileAttributeTagInfo = 9
FileIdInfo = 18


class FILETIME(ctypes.Structure):
    _fields_ = (("dwLowDateTime", DWORD), ("dwHighDateTime", DWORD))


class BY_HANDLE_FILE_INFORMATION(ctypes.Structure):
    _fields_ = (
        ("dwFileAttributes", DWORD),
        *fields(FILETIME, "ftCreationTime ftLastAccessTime ftLastWriteTime"),
        *fields(DWORD, "dwVolumeSerialNumber nFileSizeHigh nFileSizeLow"),
        *fields(DWORD, "nNumberOfLinks nFileIndexHigh nFileIndexLow"),
    )


class FILE_ATTRIBUTE_TAG_INFO(ctypes.Structure):
    _fields_ = (("FileAttributes", DWORD), ("ReparseTag", DWORD))


class FILE_ID_128(ctypes.Structure):
    _fields_ = (("Identifier", BYTE * 16),)


class FILE_ID_INFO(ctypes.Structure):
    _fields_ = (("VolumeSerialNumber", ULONGLONG), ("FileId", FILE_ID_128))


CreateFileW = kernel32(
    "CreateFileW", HANDLE, LPCWSTR, DWORD, DWORD, LPVOID, DWORD, DWORD, HANDLE, check="valid"
)
GetFileInformationByHandle = kernel32("GetFileInformationByHandle", BOOL, HANDLE, LPVOID)
GetFileInformationByHandleEx = kernel32(
    "GetFileInformationByHandleEx", BOOL, HANDLE, DWORD, LPVOID, DWORD
)
GetFinalPathNameByHandleW = kernel32(
    "GetFinalPathNameByHandleW", DWORD, HANDLE, LPVOID, DWORD, DWORD
)
CreateMutexW = kernel32("CreateMutexW", HANDLE, LPVOID, BOOL, LPCWSTR)
ReleaseMutex = kernel32("ReleaseMutex", BOOL, HANDLE)
CreateDirectoryW = kernel32("CreateDirectoryW", BOOL, LPCWSTR, LPVOID)


def open_itself(path: str, *, access: int = READ_CONTROL | WRITE_DAC) -> Handle:
    """Open the file or directory at this path, or the link itself if the path is a link."""
    access |= FILE_READ_ATTRIBUTES
    share = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE
    flags = FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT
    return Handle(CreateFileW(path, access, share, None, OPEN_EXISTING, flags, None))


def information(handle: int) -> tuple[int, int, tuple[int, int]]:
    """Return a file's attributes, its number of links, and (volume serial number, file index)."""
    found = BY_HANDLE_FILE_INFORMATION()
    GetFileInformationByHandle(handle, ctypes.byref(found))
    index = found.nFileIndexHigh << 32 | found.nFileIndexLow
    return found.dwFileAttributes, found.nNumberOfLinks, (found.dwVolumeSerialNumber, index)


def wide_identity(handle: int) -> tuple[int, int]:
    """Return the 64-bit volume number and the 128-bit file id. Since Python 3.12 these are also
    st_dev and st_ino.
    """
    found = FILE_ID_INFO()
    GetFileInformationByHandleEx(handle, FileIdInfo, ctypes.byref(found), ctypes.sizeof(found))
    return int(found.VolumeSerialNumber), int.from_bytes(bytes(found.FileId.Identifier), "little")


def reparse_tag(handle: int) -> int:
    found = FILE_ATTRIBUTE_TAG_INFO()
    size = ctypes.sizeof(found)
    GetFileInformationByHandleEx(handle, FileAttributeTagInfo, ctypes.byref(found), size)
    return int(found.ReparseTag)


def final_path(handle: int) -> str:
    r"""Return the current path of an open file or directory, without links, as `\\?\C:\...`."""
    buffer = (WCHAR * (UNICODE_STRING_MAX_CHARS + 1))()
    length = GetFinalPathNameByHandleW(handle, buffer, len(buffer), 0)
    return ctypes.string_at(buffer, 2 * length).decode("utf-16-le", "surrogatepass")


@contextmanager
def own_mutex(name: str, security: str, timeout_ms: int = 600_000) -> Iterator[None]:
    """Own a named mutex during a `with` block. `security` is its security descriptor as SDDL. If
    the owner dies, Windows releases the mutex.

    Raise OSError if the mutex is not free within `timeout_ms`. The timeout is needed because
    another program of the user could hold a mutex with this name forever.
    """
    with security_attributes(security) as attributes:
        made = CreateMutexW(ctypes.byref(attributes), 0, name)
    with Handle(made) as mutex:
        if wait_any((mutex.value,), timeout_ms) is None:
            raise OSError(0, "another process holds the mutex", name)
        try:
            yield
        finally:
            ReleaseMutex(mutex.value)


def private_list(*sids: str) -> str:
    """Return SDDL for a directory. Only the SYSTEM account and `sids` get access to this directory
    and to everything that is created in it.
    """
    return "D:P" + "".join(f"(A;OICI;FA;;;{sid})" for sid in ("SY", *sids))


def create_directory(path: str, security: str) -> None:
    """Create a directory with an access list in SDDL. Fail if the path exists."""
    with security_attributes(security) as attributes:
        CreateDirectoryW(path, ctypes.byref(attributes))
