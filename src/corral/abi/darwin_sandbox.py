"""Seatbelt by its library call. Nothing of it is in a public header; libSystem exports it.

The prototypes are those that WebKit and Chromium declare for themselves
(`Source/WTF/wtf/spi/darwin/SandboxSPI.h`, `sandbox/mac/seatbelt.cc`).
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
# Variadic: with no operation it takes no further argument, and says whether there is a sandbox.
sandbox_check = function("sandbox_check", _c_int, _c_int, _c_char_p, _c_int, check="any")


def init(profile: str, parameters: Sequence[tuple[str, str]]) -> None:
    """Put this process and all it will ever start under `profile`, for good."""
    words = [os.fsencode(word) for pair in parameters for word in pair]
    array = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    error = ctypes.c_char_p()
    if sandbox_init_with_parameters(profile.encode(), 0, array, ctypes.byref(error)):
        text = (error.value or b"no reason was given").decode(errors="replace")
        sandbox_free_error(error)
        raise OSError(0, text, "sandbox_init_with_parameters")


def confined(pid: int) -> bool:
    """Whether a process is under any sandbox."""
    return bool(sandbox_check(pid, None, 0))
