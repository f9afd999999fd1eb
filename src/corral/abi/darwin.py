"""Provide `function`, which the modules `abi/darwin_*.py` use to declare C functions. A C function
is bound when it is first called.

`tests/abi/test_darwin.py` checks that these modules follow these conventions:

- Structures are plain `ctypes.Structure` classes with Apple's name, field names and field order.
- Constants are module-level integers in UPPER_CASE with Apple's name. Constants and structures that
  are not in Apple's public headers begin with an underscore, and a comment names their source.
- Prototypes are module-level values `name = function("name", result, *arguments)`. libSystem
  exports all these functions, so no other library is loaded. Pointer arguments are `c_void_p`,
  which accepts `byref`, arrays, bytes, integers and None.

These modules can be imported on every system. On systems other than macOS, calls raise OSError.
"""

from __future__ import annotations

import ctypes
import os
import sys

from corral.abi.prototypes import Function, MissingFunctionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from corral.abi.prototypes import CType, Export

    # A `Check` says which results of a function mean success:
    # - "positive": any result above 0; a failed call sets errno
    # - "zero": only 0; a failed call sets errno
    # - "status": only 0; any other result is itself the error number
    # - "any": every result
    Check = Literal["positive", "zero", "status", "any"]


def function(name: str, result: CType | None, *arguments: CType, check: Check = "zero") -> Function:
    return Function("libSystem", name, result, arguments, check=check, find=_find, failure=_failure)


def _find(_library: str, name: str) -> Export:
    if sys.platform != "darwin":
        raise MissingFunctionError(0, "only macOS has this function", name)
    try:
        return ctypes.CDLL(None, use_errno=True)[name]
    except AttributeError as error:
        raise MissingFunctionError(0, "this version of macOS lacks the function", name) from error


def _failure(called: Function, value: int) -> OSError | None:
    if called.check == "status":
        code = value
    else:
        failed = value <= 0 if called.check == "positive" else value != 0
        code = (ctypes.get_errno() or 1) if failed and called.check != "any" else 0
    return OSError(code, os.strerror(code), called.name) if code else None


sysctlbyname = function(
    "sysctlbyname", ctypes.c_int,
    ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
)  # fmt: skip


def sysctl_text(name: str) -> str:
    space = ctypes.create_string_buffer(256)
    size = ctypes.c_size_t(len(space))
    sysctlbyname(name.encode(), space, ctypes.byref(size), None, 0)
    return space.value.decode(errors="replace")
