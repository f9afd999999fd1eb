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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, Protocol

    CType = type[ctypes._CDataType]  # noqa: SLF001 - typeshed's name for what all of them are
    # What a result says about success. "positive": 0 and less are failures, errno has the reason.
    # "zero": anything else is a failure, errno has the reason. "status": the result is the errno.
    # "any": nothing.
    Check = Literal["positive", "zero", "status", "any"]

    class Bound(Protocol):
        def __call__(self, *values: object) -> int | None: ...


class MissingFunctionError(OSError):
    """No such function in this macOS (or no macOS at all)."""


class Function:
    """One exported function: a prototype as data, looked up at the first call."""

    __slots__ = ("_bound", "arguments", "check", "name", "result")

    def __init__(
        self, name: str, result: CType | None, arguments: tuple[CType, ...], check: Check
    ) -> None:
        self.name = name
        self.result = result
        self.arguments = arguments
        self.check: Check = check
        self._bound: Bound | None = None

    def __call__(self, *values: object) -> int:
        bound = self._bound or self._bind()
        value = bound(*values) or 0
        code = _failure(self.check, value)
        if code:
            raise OSError(code, os.strerror(code), self.name)
        return value

    def _bind(self) -> Bound:
        if sys.platform != "darwin":
            raise MissingFunctionError(0, "only macOS has this function", self.name)
        try:
            bound = ctypes.CDLL(None, use_errno=True)[self.name]
        except AttributeError as error:
            text = "this macOS has no such function"
            raise MissingFunctionError(0, text, self.name) from error
        bound.argtypes = self.arguments
        bound.restype = self.result
        self._bound = bound
        return bound


def function(name: str, result: CType | None, *arguments: CType, check: Check = "zero") -> Function:
    return Function(name, result, arguments, check)


def _failure(check: Check, value: int) -> int:
    """The errno of a failed call, 0 for one that succeeded."""
    if check == "status":
        return value
    failed = value <= 0 if check == "positive" else value != 0
    return (ctypes.get_errno() or 1) if failed and check != "any" else 0


sysctlbyname = function(
    "sysctlbyname",
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
)


def sysctl_text(name: str) -> str:
    """The value of a sysctl that is a string."""
    space = ctypes.create_string_buffer(256)
    size = ctypes.c_size_t(len(space))
    sysctlbyname(name.encode(), space, ctypes.byref(size), None, 0)
    return space.value.decode(errors="replace")
