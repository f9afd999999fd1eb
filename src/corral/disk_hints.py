"""Provide hints for errors of a file system: no space, no quota left, read-only, no locks."""

from __future__ import annotations

import errno
import os

from corral.safe_text import printable

EDQUOT = getattr(errno, "EDQUOT", -1)  # Windows has no EDQUOT
HINTS = {
    errno.ENOSPC: "make room on that disk (`df -h {0}; df -i {0}` shows it)",
    EDQUOT: "remove files there, because your quota is used up (`du -xsh {0}`)",
    errno.EROFS: "make that file system writable (`findmnt -T {0}` shows it)",
    errno.ENOLCK: "mount that file system with locks (`findmnt -T {0}` shows it)",
}


def disk_hint(error: OSError, place: str, otherwise: str = "") -> str:
    """Return a hint for a file system error at `place`. `otherwise` is a remedy for any error."""
    hint = HINTS.get(error.errno or 0, "").format(_quote_existing(place))
    return f"{hint}, or {otherwise}" if hint and otherwise else hint or otherwise


def _quote_existing(path: str) -> str:
    """Return the path quoted for a shell, or the nearest directory above it that exists."""
    from shlex import quote

    while not os.path.exists(path) and (parent := os.path.dirname(path)) != path:
        path = parent
    return printable(quote(path))
