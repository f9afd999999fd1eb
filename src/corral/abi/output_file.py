"""Open an output file at a path that the user gave, but refuse a file or symlink that another user
may have put there.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from corral.directories import is_private

NOT_PLAIN = "not a plain file"


def open_output(path: str, flags: int) -> int:
    """Open a file for writing, and create it if it is missing.

    If the directory is shared, as /tmp is, another user may have put something at this path. So
    raise OSError for these:

    - a pipe, because it could block corral
    - another user's file, because that user could read and change the output
    - a file with several hard links, because another user may have linked the path to one of this
      user's files, which corral would overwrite

    Truncate the file (O_TRUNC) only after these checks.
    """
    options = flags & ~os.O_TRUNC
    for name in ("O_CREAT", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_NOINHERIT"):
        options |= getattr(os, name, 0)
    try:
        fd = os.open(path, options, 0o600)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe without a reader, or a socket
            raise OSError(errno.EINVAL, NOT_PLAIN, path) from None
        raise
    try:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            _refuse_planted(found, path)
            if flags & os.O_TRUNC:
                os.ftruncate(fd, 0)
        elif not stat.S_ISCHR(found.st_mode):
            raise OSError(errno.EINVAL, NOT_PLAIN, path)
        if sys.platform != "win32":
            os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _refuse_planted(found: os.stat_result, path: str) -> None:
    if not is_private(found, forbidden=0):
        raise PermissionError(errno.EPERM, f"the file belongs to user {found.st_uid}", path)
    if found.st_nlink > 1:
        raise PermissionError(errno.EPERM, "the file has more than one hard link", path)
