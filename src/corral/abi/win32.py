"""Define the types, prototypes, errors and handles that `abi/win32_*.py` use.

`tests/abi/test_win32.py` checks that these modules follow these conventions:

- Structures and unions are plain `ctypes.Structure` and `ctypes.Union` classes with the name, the
  field names and the field order from the header. A union that has no name in the header is a class
  whose name begins with an underscore, and its field is listed in `_anonymous_`.
- Constants and enumerators are module-level integers in UPPER_CASE with the name from the header.
  If they are not in any header, they begin with an underscore, and a comment names the source.
- Prototypes are module-level values `Name = kernel32("Name", result, *arguments)` with the exported
  name, or with `function` for a library other than kernel32. Pointer arguments are `LPVOID`, which
  accepts `byref`, arrays, integers and None. Text arguments are `LPCWSTR`.
- On every host, types have the sizes that they have on Windows. `ctypes.wintypes` is banned,
  because its DWORD has eight bytes on Linux. `c_long` and `c_ulong` are banned too, and so is
  `c_wchar` inside structures: arrays of characters are `WCHAR * n`.

These modules can be imported on every system. On systems other than Windows, calls raise OSError.
"""

from __future__ import annotations

import ctypes
import sys
from functools import partial
from typing import Literal, Self

from corral.abi import prototypes
from corral.abi.prototypes import Function, MissingFunctionError

Check = Literal["nonzero", "valid", "hresult", "ntstatus", "any"]
"""A `Check` says which results of a function mean success.

"nonzero": every result except 0 and NULL. "valid": every result except a value with all bits set
(INVALID_HANDLE_VALUE, WAIT_FAILED). In both cases GetLastError returns the cause of a failure.
"hresult" and "ntstatus": every result that is not negative. "any": every result.
"""

BYTE = ctypes.c_uint8
WORD = ctypes.c_uint16
WCHAR = ctypes.c_uint16
BOOL = ctypes.c_int32
LONG = ctypes.c_int32
HRESULT = ctypes.c_int32
NTSTATUS = ctypes.c_int32
UINT = ctypes.c_uint32
ULONG = ctypes.c_uint32
DWORD = ctypes.c_uint32
# The header declares LARGE_INTEGER as a union, but corral uses it only as a 64-bit number.
LARGE_INTEGER = ctypes.c_int64
ULONGLONG = ctypes.c_uint64
SIZE_T = ctypes.c_size_t
ULONG_PTR = ctypes.c_size_t
DWORD_PTR = ctypes.c_size_t
HANDLE = ctypes.c_void_p
LPVOID = ctypes.c_void_p
PSID = ctypes.c_void_p
LPWSTR = ctypes.c_wchar_p
LPCWSTR = ctypes.c_wchar_p

INVALID_HANDLE_VALUE = (1 << 64) - 1
LOAD_LIBRARY_SEARCH_SYSTEM32 = 0x800

ERROR_SUCCESS = 0
ERROR_FILE_NOT_FOUND = 2
ERROR_PATH_NOT_FOUND = 3
ERROR_ACCESS_DENIED = 5
ERROR_NOT_SUPPORTED = 50
ERROR_INVALID_PARAMETER = 87
ERROR_INSUFFICIENT_BUFFER = 122
ERROR_MOD_NOT_FOUND = 126
ERROR_PROC_NOT_FOUND = 127
ERROR_ALREADY_EXISTS = 183
ERROR_ACCESS_DISABLED_BY_POLICY = 1260
E_NOTIMPL = 0x80004001 - (1 << 32)
FACILITY_WIN32 = 7


def function(
    library: str,
    name: str,
    result: prototypes.CType | None,
    *arguments: prototypes.CType,
    check: Check = "nonzero",
) -> Function:
    return Function(library, name, result, arguments, check=check, find=_find, failure=_failure)


kernel32 = partial(function, "kernel32")
advapi32 = partial(function, "advapi32")


def _find(library: str, name: str) -> prototypes.Export:
    if sys.platform != "win32":
        raise MissingFunctionError(0, f"only Windows has {library}", name)
    try:
        # Search only the system's own directory. Otherwise a DLL beside the program or in the
        # current directory could replace a Windows DLL.
        loaded = ctypes.WinDLL(library, use_last_error=True, winmode=LOAD_LIBRARY_SEARCH_SYSTEM32)
        return loaded[name]
    except OSError as error:
        text = f"{library} cannot be loaded on this system"
        raise MissingFunctionError(0, text, name, ERROR_MOD_NOT_FOUND) from error
    except AttributeError as error:
        text = f"{library} on this system lacks the function"
        raise MissingFunctionError(0, text, name, ERROR_PROC_NOT_FOUND) from error


def _failure(called: Function, value: int) -> OSError | None:
    if not _failed(called.check, value, called.result):
        return None
    if called.check == "hresult":
        return windows_error(hresult_code(value), called.name)
    if called.check == "ntstatus":
        return windows_error(RtlNtStatusToDosError(value), called.name)
    return windows_error(last_error(), called.name)


def _failed(check: str, value: int, result: prototypes.CType | None) -> bool:
    if check == "nonzero":
        return value == 0
    if check == "valid":
        bits = 8 * ctypes.sizeof(result) if result is not None else 0
        return value & ((1 << bits) - 1) == (1 << bits) - 1
    return check in {"hresult", "ntstatus"} and value < 0


def hresult_code(value: int) -> int:
    """Return the Win32 error code inside an HRESULT, or the HRESULT itself if it does not contain
    one.
    """
    if value >> 16 & 0x7FFF == FACILITY_WIN32:
        return value & 0xFFFF
    return value


def last_error() -> int:
    """Return the Windows error of the last call that this thread made through a `Function`."""
    if sys.platform != "win32":
        return ERROR_SUCCESS
    return ctypes.get_last_error()


def windows_error(code: int, name: str) -> OSError:
    text = f"error {code}"
    if sys.platform == "win32":
        text = ctypes.FormatError(code).strip()
    return OSError(0, text, name, code)


def winerror(error: OSError) -> int:
    """Return the Windows code of an error, or 0 if the error has none."""
    code = getattr(error, "winerror", None)
    return code if isinstance(code, int) else 0


def read_sized(call: Function, *arguments: object, least: int = 1) -> bytearray:
    """Call a function whose last parameters are (buffer, size, needed size), and return the filled
    buffer.

    The buffer is never copied, because its content may include pointers into the buffer. It has at
    least `least` bytes, so that the caller can read a whole structure from it. Windows may ask for
    fewer bytes if a list in the structure is empty.
    """
    needed = DWORD()
    try:
        call(*arguments, None, 0, ctypes.byref(needed))
    except OSError:
        # This call has no buffer, so it always fails, but it should return the needed size.
        # If there is no size, the call has failed for another reason.
        if not needed.value:
            raise
    raw = bytearray(max(needed.value, least))
    block = (ctypes.c_char * len(raw)).from_buffer(raw)
    call(*arguments, block, len(raw), ctypes.byref(needed))
    return raw


CloseHandle = kernel32("CloseHandle", BOOL, HANDLE)
# LocalFree returns NULL for success. A failure is ignored, because no caller could handle it.
LocalFree = kernel32("LocalFree", HANDLE, HANDLE, check="any")
RtlNtStatusToDosError = function("ntdll", "RtlNtStatusToDosError", ULONG, NTSTATUS, check="any")

_open: set[Handle] = set()


def open_handles() -> int:
    """Return the number of open `Handle`s in this process. Tests use it to find leaks."""
    return len(_open)


class Handle:
    """Owns a kernel handle. It has no finalizer, so that tests can find handles left open."""

    __slots__ = ("_value",)

    def __init__(self, value: int) -> None:
        if value in {0, INVALID_HANDLE_VALUE}:
            raise ValueError(f"{value:#x} is not a handle")
        self._value = value
        _open.add(self)

    @property
    def value(self) -> int:
        if not self._value:
            raise ValueError("this handle is closed")
        return self._value

    def detach(self) -> int:
        """Return the handle, and leave it to the caller to close it."""
        value = self.value
        self._value = 0
        _open.discard(self)
        return value

    def close(self) -> None:
        """Close the handle, unless it is closed already."""
        if self._value:
            CloseHandle(self.detach())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def made_handle(call: Function, *arguments: object) -> Handle:
    """Return the handle that a call writes through its last argument."""
    made = HANDLE()
    call(*arguments, ctypes.byref(made))
    return Handle(made.value or 0)
