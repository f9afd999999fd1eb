"""Bind Apple's extensions to posix_spawn. They can replace the calling process, close descriptors,
limit the memory of the new program, and disclaim responsibility for it. If the new program then
uses private data, such as the calendar, macOS asks the user for consent in this program's name.
"""

from __future__ import annotations

import ctypes
import os

from corral.abi.darwin import function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

POSIX_SPAWN_SETEXEC = 0x0040
POSIX_SPAWN_CLOEXEC_DEFAULT = 0x4000

# From bsd/sys/spawn_internal.h in xnu, the kernel of macOS.
_POSIX_SPAWN_JETSAM_MEMLIMIT_ACTIVE_FATAL = 0x04
_POSIX_SPAWN_JETSAM_MEMLIMIT_INACTIVE_FATAL = 0x08
# From bsd/sys/kern_memorystatus.h in xnu: "the value -1 is an alias to JETSAM_PRIORITY_DEFAULT".
_JETSAM_PRIORITY_ALIAS = -1

_c_int, _c_void_p = ctypes.c_int, ctypes.c_void_p
posix_spawnattr_init = function("posix_spawnattr_init", _c_int, _c_void_p, check="status")
posix_spawnattr_setflags = function(
    "posix_spawnattr_setflags", _c_int, _c_void_p, ctypes.c_short, check="status"
)
posix_spawn_file_actions_init = function(
    "posix_spawn_file_actions_init", _c_int, _c_void_p, check="status"
)
posix_spawn_file_actions_addinherit_np = function(
    "posix_spawn_file_actions_addinherit_np", _c_int, _c_void_p, _c_int, check="status"
)
posix_spawn = function(
    "posix_spawn", _c_int,
    _c_void_p, ctypes.c_char_p, _c_void_p, _c_void_p, _c_void_p, _c_void_p, check="status",
)  # fmt: skip
# libsyscall/wrappers/spawn/posix_spawn.c of xnu declares this function, but no public header does.
posix_spawnattr_setjetsam_ext = function(
    "posix_spawnattr_setjetsam_ext", _c_int,
    _c_void_p, ctypes.c_short, _c_int, _c_int, _c_int, check="status",
)  # fmt: skip
# This function is defined in libquarantine, and libSystem re-exports it. LLDB and Chromium declare
# it in the same way.
responsibility_spawnattrs_setdisclaim = function(
    "responsibility_spawnattrs_setdisclaim", _c_int, _c_void_p, _c_int, check="status"
)


def exec_in_place(
    path: str,
    argv: Sequence[str],
    environment: Sequence[str],
    *,
    megabytes: int = 0,
    disclaim: bool = False,
) -> None:
    """Replace this process with the program `path`, which gets only descriptors 0 to 2. Raise
    OSError on failure.

    If the new program uses private data, such as the calendar, macOS asks the user for consent.
    With `disclaim`, it asks in the name of the new program, and otherwise in the name of the
    program that started corral.

    The kernel kills the new program when its footprint exceeds `megabytes`; 0 means no limit. The
    limit ends when the new program executes another program.
    """
    attributes, actions = ctypes.c_void_p(), ctypes.c_void_p()
    posix_spawnattr_init(ctypes.byref(attributes))
    posix_spawn_file_actions_init(ctypes.byref(actions))
    flags = POSIX_SPAWN_SETEXEC | POSIX_SPAWN_CLOEXEC_DEFAULT
    posix_spawnattr_setflags(ctypes.byref(attributes), flags)
    if disclaim:
        responsibility_spawnattrs_setdisclaim(ctypes.byref(attributes), 1)
    if megabytes:
        fatal = (
            _POSIX_SPAWN_JETSAM_MEMLIMIT_ACTIVE_FATAL | _POSIX_SPAWN_JETSAM_MEMLIMIT_INACTIVE_FATAL
        )
        posix_spawnattr_setjetsam_ext(
            ctypes.byref(attributes), fatal, _JETSAM_PRIORITY_ALIAS, megabytes, megabytes
        )
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            continue  # already closed
        posix_spawn_file_actions_addinherit_np(ctypes.byref(actions), fd)
    words = _array(argv), _array(environment)
    posix_spawn(None, os.fsencode(path), ctypes.byref(actions), ctypes.byref(attributes), *words)


def _array(words: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(words) + 1))(*(os.fsencode(word) for word in words), None)
