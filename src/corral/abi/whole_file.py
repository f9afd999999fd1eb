"""Replace a file as a whole. After a crash the file has either its old or its new content. This is
true after a power cut, too, if the caller has not turned off syncing.

The content is written to a new file next to the old one and synced to the disk. Then the new file
is renamed over the old one. A crash can leave the new file behind, under a name that ends in
`.corral-new`. Its lock ends with the crashed process, so the next writer in the directory can tell
that the file is a leftover, and removes it.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from corral.abi.private_directory import create_locked, lock_dead, remove_locked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ENDING = ".corral-new"
UNSYNCABLE = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)
"""Errors that mean that the file system cannot sync a directory, or that this user cannot read it.
"""


def replace_file(
    path: str,
    content: bytes,
    *,
    like: os.stat_result | None = None,
    check: Callable[[], None] = lambda: None,
    sync: bool = True,
) -> None:
    """Replace the file `path`. The new file gets its owner and mode from the stat result `like`.

    `check` is called just before the file is replaced. If it raises an error, the old file stays.

    Without `sync` a power cut may damage the file. Pass `sync=False` only for files that are
    checked when they are read, or that are not used after a reboot.
    """
    directory, name = os.path.split(path)
    discard_leftovers(directory)
    fresh = os.path.join(directory, f".{name}.{os.urandom(6).hex()}{ENDING}")
    fd = create_locked(fresh)
    try:
        _fill(fd, content, like, sync=sync)
        check()
        if sys.platform == "win32":
            os.close(fd)  # Windows cannot rename an open file
            fd = -1
        os.replace(fresh, path)
    except BaseException as error:
        remove_locked(fresh, fd)
        fd = -1
        if isinstance(error, OSError):
            # Add the file's path to the error, because errors from `write` contain no path.
            raise OSError(error.errno, error.strerror, path) from error
        raise
    finally:
        if fd >= 0:
            os.close(fd)
    if sync:
        sync_directory(directory)


def _fill(fd: int, content: bytes, like: os.stat_result | None, *, sync: bool) -> None:
    left = content
    while left:
        left = left[os.write(fd, left) :]
    if like is not None and sys.platform != "win32":
        own = os.fstat(fd)
        if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
            # If the old file belongs to another user, this call fails, which is better than
            # changing the owner.
            os.fchown(fd, like.st_uid, like.st_gid)
        os.fchmod(fd, stat.S_IMODE(like.st_mode))
    if sync:
        os.fsync(fd)


def discard_leftovers(directory: str) -> None:
    """Remove the new files that killed writers have left behind in a directory."""
    try:
        names = os.listdir(directory or os.curdir)
    except OSError:
        return  # this user is not allowed to list the directory
    for name in names:
        if name.endswith(ENDING) and (fd := lock_dead(os.path.join(directory, name))) >= 0:
            remove_locked(os.path.join(directory, name), fd)


def sync_directory(directory: str) -> None:
    """Sync a directory, so that its new and renamed files keep their names after a power cut. Do
    nothing if the system cannot sync directories.
    """
    if sys.platform == "win32":
        return
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in UNSYNCABLE:
            raise
