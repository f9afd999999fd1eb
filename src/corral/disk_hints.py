"""Provide hints for file system errors: no space, quota used up, read-only, or no locks."""

import errno
import os

from corral.safe_text import printable

EDQUOT = getattr(errno, "EDQUOT", -1)  # Windows has no EDQUOT
HINTS = {
    errno.ENOSPC: "free space on that disk (`df -h {0}; df -i {0}` shows how full it is)",
    EDQUOT: "remove files there, because your quota is used up (`du -xsh {0}`)",
    errno.EROFS: "make that file system writable (`findmnt -T {0}` shows its mount options)",
    errno.ENOLCK: "mount that file system with locking (`findmnt -T {0}` shows its mount options)",
}


def disk_hint(error: OSError, place: str, otherwise: str = "") -> str:
    """Return a hint for a file system error at `place`, followed by `otherwise`, which is advice
    for any error.
    """
    from shlex import quote

    while not os.path.exists(place) and (parent := os.path.dirname(place)) != place:
        place = parent
    hint = HINTS.get(error.errno or 0, "").format(printable(quote(place)))
    return f"{hint}, or {otherwise}" if hint and otherwise else hint or otherwise
