"""The ground that every `abi/darwin_*.py` stands on: prototypes as data, bound at the first call.

The convention of these modules, which `tests/abi/test_darwin.py` reads and checks by itself:

- Structures are plain `ctypes.Structure` classes with Apple's name, field names and field order.
- Constants are module-level integers in UPPER_CASE with Apple's name. What Apple's public headers
  do not have begins with an underscore and says which source it comes from; so does a structure.
- Prototypes are module-level values `name = function("name", result, *arguments)`. All of them are
  exported by libSystem, so nothing is loaded for them. Arguments that point at something are
  `c_void_p`, which takes `byref`, arrays, bytes, integers and None alike.

Everything here can be imported anywhere; a call anywhere but on macOS raises OSError.
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

    # What a result says about success. "positive": 0 and less are failures, errno has the reason.
    # "zero": anything else is a failure, errno has the reason. "status": the result is the errno.
    # "any": nothing.
    Check = Literal["positive", "zero", "status", "any"]


def function(name: str, result: CType | None, *arguments: CType, check: Check = "zero") -> Function:
    return Function("libSystem", name, result, arguments, check=check, find=_find, failure=_failure)


def _find(_library: str, name: str) -> Export:
    if sys.platform != "darwin":
        raise MissingFunctionError(0, "only macOS has this function", name)
    try:
        return ctypes.CDLL(None, use_errno=True)[name]
    except AttributeError as error:
        raise MissingFunctionError(0, "this macOS has no such function", name) from error


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
    """The value of a sysctl that is a string."""
    space = ctypes.create_string_buffer(256)
    size = ctypes.c_size_t(len(space))
    sysctlbyname(name.encode(), space, ctypes.byref(size), None, 0)
    return space.value.decode(errors="replace")
