"""A path as the kernel itself spells it: the only spelling that Seatbelt compares.

Most volumes of a Mac take a name in any case, and the user's volume can be reached by two paths
(/Users is /System/Volumes/Data/Users). `realpath` keeps what was typed, so that a rule for it could
be silently dead: a grant would show nothing, or what is hidden in it would be seen.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers

LONGEST = 1024


def exact(path: str) -> str:
    """A link stays one, and what cannot be opened is spelled as it was typed, in the directory that
    it is said to be in.
    """
    opened = _opened(path)
    if opened is not None:
        return opened
    parent, name = os.path.split(path)
    return path if parent == path else os.path.join(exact(parent), name)


def _opened(path: str) -> str | None:
    """By F_GETPATH of fcntl(2). Other systems have neither that nor volumes that need it."""
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
        return os.fsdecode(fcntl.fcntl(fd, command, bytes(LONGEST)).partition(b"\0")[0])
    except OSError:
        return None
    finally:
        os.close(fd)
