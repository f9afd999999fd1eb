"""Convert a path to the kernel's own spelling, because Seatbelt compares paths in that spelling.

Most volumes on a Mac ignore case, and every file on the user's volume has two paths (/Users is also
/System/Volumes/Data/Users). So the same file can be written in several ways. `realpath` keeps the
spelling that the user typed, but a rule with that spelling may silently match nothing. Then a grant
would have no effect, or a hidden file would be readable.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers

MAXPATHLEN = 1024


def to_kernel_path(path: str) -> str:
    """Return the kernel's spelling of a path, without following a symlink at its end.

    corral opens the path to get this spelling. The names at the path's end that cannot be opened,
    such as missing files, keep the spelling that they have.
    """
    opened = _path_of_opened(path)
    if opened is not None:
        return opened
    parent, name = os.path.split(path)
    return path if parent == path else os.path.join(to_kernel_path(parent), name)


def _path_of_opened(path: str) -> str | None:
    """Return the path that fcntl(2) reports for an open file (F_GETPATH), or None if the file
    cannot be opened. On systems without F_GETPATH return `path`.
    """
    import fcntl

    command: int | None = getattr(fcntl, "F_GETPATH", None)
    if command is None:
        return path
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_EVTONLY", 0)
    try:
        fd = os.open(path, os.O_RDONLY | flags)
    except OSError:
        return None
    try:
        return os.fsdecode(fcntl.fcntl(fd, command, bytes(MAXPATHLEN)).partition(b"\0")[0])
    except OSError:
        return None
    finally:
        os.close(fd)
