"""Bind Seatbelt's functions, which libSystem exports but no public header declares.

The prototypes are those in WebKit (`Source/WTF/wtf/spi/darwin/SandboxSPI.h`) and Chromium
(`sandbox/mac/seatbelt.cc`).
"""

from __future__ import annotations

import ctypes
import os

from corral.abi.darwin import function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_c_int, _c_char_p, _c_void_p = ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
sandbox_init_with_parameters = function(
    "sandbox_init_with_parameters", _c_int,
    _c_char_p, ctypes.c_uint64, _c_void_p, _c_void_p, check="any",
)  # fmt: skip
sandbox_free_error = function("sandbox_free_error", None, _c_void_p, check="any")
# These two constants are from WebKit's header and LLVM's sanitizer_mac_spi.cc. The first is a type
# of filter, and the second is a flag that can be added to a type of filter.
_SANDBOX_FILTER_GLOBAL_NAME = 2
_SANDBOX_CHECK_NO_REPORT = 0x40000000
# This function is variadic: if its second argument names an operation, it reads a fourth argument.
# If the second is NULL, it only returns whether the process is in a sandbox. The fourth argument is
# not declared, so that ctypes passes it as a variadic argument.
sandbox_check = function("sandbox_check", _c_int, _c_int, _c_char_p, _c_int, check="any")


def init(profile: str, parameters: Sequence[tuple[str, str]]) -> None:
    """Confine this process and all its future children by `profile`. This cannot be undone."""
    words = [os.fsencode(word) for pair in parameters for word in pair]
    array = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    error = ctypes.c_char_p()
    if sandbox_init_with_parameters(profile.encode(), 0, array, ctypes.byref(error)):
        text = (error.value or b"no reason was given").decode(errors="replace")
        sandbox_free_error(error)
        raise OSError(0, text, "sandbox_init_with_parameters")


def confined(pid: int) -> bool:
    return bool(sandbox_check(pid, None, 0))


def may_look_up(pid: int, service: str) -> bool:
    """Return whether the profile of a process allows the process to look up a mach service."""
    kind = _SANDBOX_FILTER_GLOBAL_NAME | _SANDBOX_CHECK_NO_REPORT
    return sandbox_check(pid, b"mach-lookup", kind, ctypes.c_char_p(service.encode())) == 0
