"""The ground that every `abi/win32_*.py` stands on: types, prototypes, errors, handles.

The convention of these modules, which `tests/abi/test_win32.py` reads and checks by itself:

- Structures and unions are plain `ctypes.Structure` and `ctypes.Union` classes with the name, the
  field names and the field order of the header. A nameless union inside takes any field name and
  `_anonymous_`; its class begins with an underscore and is checked through the one that holds it.
- Constants are module-level integers in UPPER_CASE with the name of the header, enumerators too.
  What a header does not know begins with an underscore, and says where it comes from.
- Prototypes are module-level values `Name = kernel32("Name", result, *arguments)` with the name of
  the export, and `function` of another library. Arguments that point at something are `LPVOID`
  (takes `byref`, arrays, integers and None), texts are `LPCWSTR`.
- Sizes are those of Windows on every host. `ctypes.wintypes` is banned: its DWORD has eight bytes
  on Linux. So are `c_long`, `c_ulong` and, inside structures, `c_wchar`: arrays of characters are
  `WCHAR * n`.

Everything here can be imported anywhere; a call anywhere but on Windows raises OSError.
"""

from __future__ import annotations

import ctypes
import sys
from functools import partial
from typing import Literal, Self

from corral.abi import prototypes
from corral.abi.prototypes import Function, MissingFunctionError

Check = Literal["nonzero", "valid", "hresult", "ntstatus", "any"]
"""What a result says about success. "nonzero": 0 and NULL are failures, GetLastError has the
reason. "valid": all bits set is the failure (INVALID_HANDLE_VALUE, WAIT_FAILED and the like).
"hresult", "ntstatus": by their sign. "any": nothing.
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
LARGE_INTEGER = ctypes.c_int64  # a union in the header, and always read whole
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
        # From the system's own directory alone: a DLL beside the program or in the current
        # directory must not be able to replace one of Windows.
        loaded = ctypes.WinDLL(library, use_last_error=True, winmode=LOAD_LIBRARY_SEARCH_SYSTEM32)
        return loaded[name]
    except OSError as error:
        text = f"{library} does not load here"
        raise MissingFunctionError(0, text, name, ERROR_MOD_NOT_FOUND) from error
    except AttributeError as error:
        text = f"{library} has no such function here"
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
    """The Win32 error inside an HRESULT, or the HRESULT itself, negative, if it wraps none."""
    if value >> 16 & 0x7FFF == FACILITY_WIN32:
        return value & 0xFFFF
    return value


def last_error() -> int:
    """What GetLastError said after the last call of this thread through a `Function`."""
    if sys.platform != "win32":
        return ERROR_SUCCESS
    return ctypes.get_last_error()


def windows_error(code: int, name: str) -> OSError:
    """An OSError that carries the code, its text, and the function that failed."""
    text = f"error {code}"
    if sys.platform == "win32":
        text = ctypes.FormatError(code).strip()
    return OSError(0, text, name, code)


def winerror(error: OSError) -> int:
    """The Windows code of an error; 0 for one that came from somewhere else."""
    code = getattr(error, "winerror", None)
    return code if isinstance(code, int) else 0


def read_sized(call: Function, *arguments: object, least: int = 1) -> bytearray:
    """Return what a function of the form (..., buffer, size, needed size) writes.

    Pointers in the content lead to the same block, so it is never copied. `least` is its smallest
    size: an empty list can be shorter than the structure that it is read as.
    """
    needed = DWORD()
    try:
        call(*arguments, None, 0, ctypes.byref(needed))
    except OSError:
        if not needed.value:
            raise  # otherwise the call only reported how much it needs
    raw = bytearray(max(needed.value, least))
    block = (ctypes.c_char * len(raw)).from_buffer(raw)
    call(*arguments, block, len(raw), ctypes.byref(needed))
    return raw


CloseHandle = kernel32("CloseHandle", BOOL, HANDLE)
# It hands back NULL for success, and what callers could do about a failure is nothing.
LocalFree = kernel32("LocalFree", HANDLE, HANDLE, check="any")
RtlNtStatusToDosError = function("ntdll", "RtlNtStatusToDosError", ULONG, NTSTATUS, check="any")

_open: set[Handle] = set()


def open_handles() -> int:
    """How many `Handle`s are open in this process: a test of leaks compares two of these."""
    return len(_open)


class Handle:
    """Owns a kernel handle. There is no finalizer: one that is not closed is a defect to find."""

    __slots__ = ("_value",)

    def __init__(self, value: int) -> None:
        if value in {0, INVALID_HANDLE_VALUE}:
            raise ValueError(f"{value:#x} is no handle")
        self._value = value
        _open.add(self)

    @property
    def value(self) -> int:
        if not self._value:
            raise ValueError("this handle is closed")
        return self._value

    def detach(self) -> int:
        """Gives the handle away: the caller owns it now, this object is as good as closed."""
        value = self.value
        self._value = 0
        _open.discard(self)
        return value

    def close(self) -> None:
        """Closes once; later calls do nothing."""
        if self._value:
            CloseHandle(self.detach())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def made_handle(call: Function, *arguments: object) -> Handle:
    """Return the handle that a call writes to where its last argument points."""
    made = HANDLE()
    call(*arguments, ctypes.byref(made))
    return Handle(made.value or 0)
