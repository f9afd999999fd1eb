"""Read and replace another program's file without ever losing its content.

A new file takes the old one's name in one step, with its mode and owner, and only if the old file
is still what was read. Another program can still write between that last check and the step.
"""

import os
import stat
import sys

from corral.errors import SandboxError
from corral.record import record

MAX_SIZE = 32 << 20
# Windows has only the first of these, POSIX only the other two.
OPEN_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


@record
class FileContent:
    """`path` is the real file at the end of all links."""

    path: str
    data: bytes
    stat: os.stat_result

    @property
    def text(self) -> str:
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            raise SandboxError(f"{self.path}: line {line}: this is no UTF-8 text") from None


def read(path: str) -> FileContent:
    real = os.path.realpath(path)
    try:
        fd = os.open(real, os.O_RDONLY | OPEN_FLAGS | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise SandboxError(f"{path} cannot be read: {error.strerror}") from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise SandboxError(f"{path} is no regular file")
    with open(fd, "rb") as stream:
        if found.st_size > MAX_SIZE:
            raise SandboxError(
                f"{path} is larger than {MAX_SIZE >> 20} MiB", hint="is it the right file?"
            )
        return FileContent(path=real, data=stream.read(MAX_SIZE), stat=found)


def refuse_unwritable(content: FileContent) -> None:
    """Refuse a read-only file, for root too, and a file with other names, which would stay old."""
    found, path = content.stat, content.path
    if not found.st_mode & 0o222 or not os.access(path, os.W_OK):
        raise SandboxError(
            f"{path} is read-only", hint="if another program makes this file, change it there"
        )
    if found.st_nlink > 1:
        raise SandboxError(
            f"{path} has {found.st_nlink} names (hard links), and a new file would have only one",
            hint="make it a file of its own, or a symbolic link",
        )


def replace(content: FileContent, data: bytes) -> None:
    """Replace exactly `content` by `data`, or raise and leave the file as it is."""
    try:
        fresh = write_temporary(content.path, data, content.stat)
        try:
            now = read(content.path)
            if now.data != content.data or not os.path.samestat(now.stat, content.stat):
                raise SandboxError(
                    f"{content.path} was changed by somebody else meanwhile",
                    hint="nothing was written; try again",
                )
            os.replace(fresh, content.path)
        except BaseException:
            os.unlink(fresh)
            raise
        sync_directory(os.path.dirname(content.path))
    except OSError as error:
        raise SandboxError(f"{content.path} cannot be replaced: {error.strerror}") from error


def write_temporary(path: str, data: bytes, like: os.stat_result | None = None) -> str:
    """Write and sync a file in the directory of `path`, with the owner and mode of `like`."""
    directory, name = os.path.split(path)
    fresh = os.path.join(directory, f".{name}.{os.urandom(6).hex()}.corral")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | OPEN_FLAGS, 0o600)
    try:
        with open(fd, "wb") as stream:
            stream.write(data)
            stream.flush()
            if like is not None:
                _copy_owner_and_mode(fd, like)
            os.fsync(fd)
    except BaseException:
        os.unlink(fresh)
        raise
    return fresh


def _copy_owner_and_mode(fd: int, like: os.stat_result) -> None:
    if sys.platform == "win32":
        return
    own = os.fstat(fd)
    if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
        # Fails for another user's file: taking the file over would be worse.
        os.fchown(fd, like.st_uid, like.st_gid)
    os.fchmod(fd, stat.S_IMODE(like.st_mode))


def sync_directory(directory: str) -> None:
    if sys.platform == "win32":
        return
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
