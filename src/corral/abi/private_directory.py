"""Create directories that only this user can use, and read, write and lock files in them.

Root may run corral with another user's HOME, so these functions never read or write another user's
files, and create nothing in another user's directories.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from corral.directories import is_private

MAX_BYTES = 1 << 20
MAX_KEPT_FILES = 32
"""The number of files that `write_checked_file` keeps in a directory. Every version of corral adds
its own, so the oldest are removed.
"""
PRIME = (1 << 61) - 1
OVERFLOW_ID = 65534
OPEN_FLAGS: int = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOINHERIT", 0)
)
# On Windows other processes cannot read locked bytes, so corral locks only this byte, which is far
# beyond the end of the file.
LOCKED_BYTE = 1 << 30
MAX_LOCK_TRIES = 1000
"""The number of attempts to lock a new file. Together they take at least ten seconds, since a
process that removes leftovers may hold the lock that long on a busy machine.
"""
LOCKED = "another process holds the lock"


def make_private_directory(path: str) -> None:
    """Create a directory that only this user can use, and the missing directories above it. Do
    nothing if the directory exists already.

    On Windows an access list gives the user access. Mode 0o700 would give access only to the owner,
    which is the administrators' group if an elevated process creates the directory.
    """
    if sys.platform != "win32":
        _refuse_users_directory(path)
        _make_directories(path)
        return
    from corral.abi import win32, win32_files, win32_security, win32_token

    os.makedirs(os.path.dirname(path), exist_ok=True)
    with win32_token.own_token(win32_security.TOKEN_QUERY) as own:
        user = win32_security.format_sid(win32_token.token_user(own.value))
    try:
        win32_files.create_directory(path, win32_files.private_list(user))
    except OSError as error:
        if win32.winerror(error) != win32.ERROR_ALREADY_EXISTS or not os.path.isdir(path):
            raise


def _make_directories(path: str) -> None:
    """Create a directory and the missing directories above it. Sync each of them to the disk before
    creating the next, so that no power cut can remove the directory of a synced file.
    """
    if os.path.isdir(path or os.curdir):
        return
    from corral.abi.whole_file import sync_directory

    above = os.path.dirname(path)
    _make_directories(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    sync_directory(above)


def _refuse_users_directory(path: str) -> None:
    """If this process is root, refuse a path below an ordinary user's directory.

    That user could put symlinks into the path, and root would follow them. The user also could not
    use the directories that root creates in this place.
    """
    if sys.platform == "win32" or os.geteuid():
        return
    for whole in (path, os.path.realpath(path)):
        for part in directories_above(whole):
            try:
                owner = os.lstat(part).st_uid
            except FileNotFoundError:
                break
            if owner and not _is_unmapped(owner):
                raise PermissionError(errno.EPERM, f"{part} belongs to user {owner}", path)


def directories_above(path: str) -> list[str]:
    """Return `path` and every directory above it, from the top down."""
    parts = [path]
    while (above := os.path.dirname(parts[-1])) != parts[-1]:
        parts.append(above)
    return parts[::-1]


def _is_unmapped(owner: int) -> bool:
    """Return whether `owner` stands for users that are not mapped into this process's user
    namespace. For all of them the kernel shows the same number, the overflow id. If every user id
    is mapped, this number is the id of an ordinary user.
    """
    if sys.platform != "linux" or owner != OVERFLOW_ID:
        return False
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return file.read().split() != ["0", "0", str((1 << 32) - 1)]


def read_private_file(path: str) -> bytes:
    """Read a file that only this user can have written. Raise OSError for any other file. Never
    follow a symlink or wait for the writer of a pipe.
    """
    _refuse_foreign_directories(path)
    fd = os.open(path, os.O_RDONLY | OPEN_FLAGS | getattr(os, "O_NONBLOCK", 0))
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or not is_private(found):
            raise PermissionError(path)
        return os.read(fd, min(found.st_size, MAX_BYTES))
    finally:
        os.close(fd)


def write_private_file(path: str, content: bytes) -> None:
    """Replace a whole file, and create the two directories above it if they are missing."""
    for part in (os.path.dirname(os.path.dirname(path)), os.path.dirname(path)):
        make_private_directory(part)
    _refuse_foreign_directories(path)
    from corral.abi.whole_file import replace_file

    replace_file(path, content, sync=False)


def read_checked_file(path: str) -> bytes:
    """Return the content that `write_checked_file` wrote. Raise OSError if the file is damaged, or
    if another user could have written it.
    """
    content = read_private_file(path)
    if content[:8] != checksum(content[8:]).to_bytes(8, "little"):
        raise OSError(0, "the file is damaged", path)
    return content[8:]


def write_checked_file(path: str, body: bytes) -> None:
    """Write a file with a checksum. Of all files in its directory, keep only the `MAX_KEPT_FILES`
    newest ones.
    """
    write_private_file(path, checksum(body).to_bytes(8, "little") + body)
    with os.scandir(os.path.dirname(path)) as entries:
        kept = sorted((one.stat(follow_symlinks=False).st_mtime_ns, one.path) for one in entries)
    for _, oldest in kept[:-MAX_KEPT_FILES]:
        os.unlink(oldest)


def _refuse_foreign_directories(path: str) -> None:
    """Refuse a file if one of the two directories above it is a symlink, belongs to another user or
    is writable by everyone.
    """
    directory = os.path.dirname(path)
    for part in (os.path.dirname(directory), directory):
        found = os.lstat(part)
        if not stat.S_ISDIR(found.st_mode) or not is_private(found, forbidden=stat.S_IWOTH):
            raise PermissionError(part)


def checksum(content: bytes) -> int:
    """Return a checksum that detects damage. `hashlib` is not used, because importing it takes
    milliseconds.
    """
    return int.from_bytes(content, "little") % PRIME


def create_locked(path: str) -> int:
    """Create and lock a file, and return its descriptor. Never use an existing file, because
    another user may have put it there.

    If another process mistakes the new file for a leftover and removes it before it is locked,
    create it again. Wait only a limited time for the lock, because a target that can write to the
    directory could lock the file and never unlock it.
    """
    make_private_directory(os.path.dirname(path))
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | OPEN_FLAGS, 0o600)
        try:
            _lock_soon(fd, path)
        except OSError:
            os.close(fd)
            os.unlink(path)
            raise
        if _is_same(fd, path):
            return fd
        os.close(fd)


def _lock_soon(fd: int, path: str) -> None:
    """Lock a new file. Raise BlockingIOError if another process holds the lock too long."""
    for _ in range(MAX_LOCK_TRIES):
        try:
            return lock(fd, wait=False)
        except BlockingIOError:
            import time

            time.sleep(0.01)
    raise BlockingIOError(errno.EAGAIN, LOCKED, path)


def lock(fd: int, *, wait: bool) -> None:
    """Lock a file until its descriptor is closed.

    Without `wait`, raise BlockingIOError if another process has the lock.
    """
    if sys.platform == "win32":
        import msvcrt

        os.lseek(fd, LOCKED_BYTE, os.SEEK_SET)
        while True:
            try:
                # LK_LOCK gives up after ten seconds, but an installation may keep the lock longer.
                msvcrt.locking(fd, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError as error:
                if not wait:
                    raise BlockingIOError(errno.EAGAIN, LOCKED) from error
            else:
                break
        os.lseek(fd, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_dead(path: str) -> int:
    """Lock the leftover file of a dead process, and return its descriptor.

    Return -1 if the process is alive. Also return -1 if another user owns the file: some callers
    remove the paths that the file lists, and that user could list any path.
    """
    fd = open_own(path)
    try:
        if fd >= 0:
            lock(fd, wait=False)
            if _is_same(fd, path):
                return fd
    except OSError:
        pass
    if fd >= 0:
        os.close(fd)
    return -1


def remove_locked(path: str, fd: int) -> None:
    """Remove a locked file, and close its descriptor if `fd` is not -1. If the file cannot be
    removed, leave it to a later process.

    Remove the file before unlocking it. The process that created the file may still wait for the
    lock. If the file were unlocked first, that process could get the lock and use the file just
    before it is removed. On Windows close the descriptor first, because an open file cannot be
    removed.
    """
    if sys.platform == "win32" and fd >= 0:
        os.close(fd)
        fd = -1
    try:
        os.unlink(path)
    except OSError:
        pass
    if fd >= 0:
        os.close(fd)


def open_own(path: str) -> int:
    """Open a regular file that belongs to this user. Return -1 for anything else, even a symlink to
    such a file.
    """
    try:
        fd = os.open(path, os.O_RDWR | getattr(os, "O_NONBLOCK", 0) | OPEN_FLAGS)
    except OSError:
        return -1
    if _is_own(os.fstat(fd)):
        return fd
    os.close(fd)
    return -1


def _is_own(seen: os.stat_result) -> bool:
    """Return whether this is a regular file that belongs to this user and has only one hard link.
    On Windows accept every regular file, because the files are in the user's own profile.
    """
    if sys.platform == "win32":
        return stat.S_ISREG(seen.st_mode)
    return stat.S_ISREG(seen.st_mode) and (seen.st_uid, seen.st_nlink) == (os.geteuid(), 1)


def _is_same(fd: int, path: str) -> bool:
    try:
        return os.fstat(fd).st_ino == os.stat(path).st_ino
    except FileNotFoundError:
        return False
