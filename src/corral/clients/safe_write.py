"""Reading and replacing somebody else's file so that nothing is ever lost.

A new file takes the old one's place in one step, with its mode and owner, and only if the old one
is still what was read. Between that last look and the step lies a moment that nobody can close.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.errors import SandboxError
from corral.record import record

LARGEST = 32 << 20
BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
CAREFUL = BINARY | getattr(os, "O_NOFOLLOW", 0)


@record
class Content:
    """`path` is the real file at the end of all links."""

    path: str
    data: bytes
    found: os.stat_result

    @property
    def text(self) -> str:
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            raise SandboxError(f"{self.path}: line {line}: this is no UTF-8 text") from None


def read(path: str) -> Content:
    real = os.path.realpath(path)
    try:
        fd = os.open(real, os.O_RDONLY | CAREFUL | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise SandboxError(f"{path} cannot be read: {error.strerror}") from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise SandboxError(f"{path} is no regular file")
    with open(fd, "rb") as stream:
        if found.st_size > LARGEST:
            raise SandboxError(
                f"{path} is larger than {LARGEST >> 20} MiB", hint="is it the right file?"
            )
        return Content(path=real, data=stream.read(LARGEST), found=found)


def refuse_unwritable(content: Content) -> None:
    """Said before anything is worked out, and for root too, who may write what nobody should."""
    found, path = content.found, content.path
    if not found.st_mode & 0o222 or not os.access(path, os.W_OK):
        raise SandboxError(
            f"{path} is read-only",
            hint="if another program makes this file, change it there",
        )
    if found.st_nlink > 1:
        raise SandboxError(
            f"{path} has {found.st_nlink} names (hard links), and a new file would have only one",
            hint="make it a file of its own, or a symbolic link",
        )


def replace(content: Content, data: bytes) -> None:
    """`data` instead of exactly `content`; raises and leaves everything as it is otherwise."""
    try:
        fresh = write_beside(content.path, data, content.found)
        try:
            if not _unchanged(content):
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


def _unchanged(content: Content) -> bool:
    now = read(content.path)
    return now.data == content.data and os.path.samestat(now.found, content.found)


def write_beside(path: str, data: bytes, like: os.stat_result | None = None) -> str:
    """A finished file in the same directory, on disk, that has yet to take its name."""
    directory, name = os.path.split(path)
    fresh = os.path.join(directory, f".{name}.{os.urandom(6).hex()}.corral")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | CAREFUL, 0o600)
    try:
        with open(fd, "wb") as stream:
            stream.write(data)
            stream.flush()
            if like is not None and sys.platform != "win32":
                _take_after(fd, like)
            os.fsync(fd)
    except BaseException:
        os.unlink(fresh)
        raise
    return fresh


def _take_after(fd: int, like: os.stat_result) -> None:
    if sys.platform == "win32":
        return
    own = os.fstat(fd)
    if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
        # Fails for a file of somebody else's: better than to make it ours.
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
