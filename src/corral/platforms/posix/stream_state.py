"""Put back what a target changed on the files and terminals behind its standard streams.

A target can change mode, owner, access list and flags of a file through a descriptor that was only
opened for reading, and set a terminal's exclusive mark, which keeps others from opening it. Pipes
and sockets are left alone: to keep one open would hide its end from the client.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.record import record

if sys.platform != "win32":
    import fcntl

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Aspect = tuple[str, Callable[[int], object], Callable[[int, object], None]]

NAMES = ("stdin", "stdout", "stderr")
# Numbers of Linux. Elsewhere the calls fail, and what cannot be read is not put back.
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS = 0x80086601, 0x40086602
TIOCEXCL, TIOCNXCL, TIOCGEXCL = 0x540C, 0x540D, 0x80045440


@record
class StreamStates:
    """(name, own descriptor, values by aspect) of the files and terminals among the streams."""

    streams: tuple[tuple[str, int, tuple[object, ...]], ...]

    def restore(self) -> tuple[str, ...]:
        """Put back what differs, and return a line for each change."""
        return tuple(
            line
            for name, fd, values in self.streams
            for aspect, before in zip(ASPECTS, values, strict=True)
            if (line := _restore(name, fd, aspect, before))
        )

    def release(self) -> None:
        for _, fd, _ in self.streams:
            os.close(fd)


def keep(stdio: Sequence[int]) -> StreamStates:
    """Remember the state of the files and terminals among the streams."""
    found = []
    for name, fd in zip(NAMES, stdio, strict=True):
        try:
            seen = os.fstat(fd)
        except OSError:
            continue  # closed
        if stat.S_ISREG(seen.st_mode) or (stat.S_ISCHR(seen.st_mode) and os.isatty(fd)):
            own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
            # Only its owner can change the rest, and root must not do it for another user's file.
            is_owner = seen.st_uid == os.geteuid()
            values = [
                _look(read, own) if is_owner or what in (FLAGS, EXCLUSIVE) else None
                for what, read, _ in ASPECTS
            ]
            found.append((name, own, tuple(values)))
    return StreamStates(streams=tuple(found))


def _look(read: Callable[[int], object], fd: int) -> object:
    """Return what `read` sees, None where the file system or the system does not have it."""
    try:
        return read(fd)
    except OSError:
        return None


def _restore(name: str, fd: int, aspect: Aspect, before: object) -> str:
    what, read, write = aspect
    if before is None or _look(read, fd) == before:
        return ""
    try:
        write(fd, before)
    except OSError as error:
        return f"the {what} of {name} changed during the run: not put back ({error.strerror})"
    # Every event loop sets O_NONBLOCK, so that is not worth a line.
    return f"the {what} of {name} changed during the run: put back" if what != FLAGS else ""


def _get_flags(fd: int) -> object:
    return fcntl.fcntl(fd, fcntl.F_GETFL)


def _set_flags(fd: int, value: object) -> None:
    if isinstance(value, int):
        fcntl.fcntl(fd, fcntl.F_SETFL, value)


def _get_inode_flags(fd: int) -> object:
    return fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(8))


def _set_inode_flags(fd: int, value: object) -> None:
    if isinstance(value, bytes):
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, value)


def _get_owner(fd: int) -> object:
    seen = os.fstat(fd)
    return seen.st_uid, seen.st_gid


def _set_owner(fd: int, value: object) -> None:
    if isinstance(value, tuple):
        os.fchown(fd, *value)


def _get_attributes(fd: int) -> object:
    """Return the extended attributes; the access list is one of them."""
    if sys.platform != "linux":
        return None
    return {name: os.getxattr(fd, name) for name in _attribute_names(fd)}


def _attribute_names(fd: int) -> set[str]:
    """Leave out `security.*`: the kernel takes capabilities off a file that was written to."""
    if sys.platform != "linux":
        return set()
    return {name for name in os.listxattr(fd) if not name.startswith("security.")}


def _set_attributes(fd: int, value: object) -> None:
    if sys.platform == "linux" and isinstance(value, dict):
        for name in _attribute_names(fd) - set(value):
            os.removexattr(fd, name)
        for name, content in value.items():
            if name not in _attribute_names(fd) or os.getxattr(fd, name) != content:
                os.setxattr(fd, name, content)


def _get_mode(fd: int) -> object:
    """Leave out set-id bits: a write clears them, and what was written must not get them back."""
    return os.fstat(fd).st_mode & 0o1777


def _set_mode(fd: int, value: object) -> None:
    if isinstance(value, int):
        os.fchmod(fd, value)


def _get_exclusive(fd: int) -> object:
    return fcntl.ioctl(fd, TIOCGEXCL, bytes(4)) != bytes(4)


def _set_exclusive(fd: int, value: object) -> None:
    fcntl.ioctl(fd, TIOCEXCL if value else TIOCNXCL)


FLAGS, EXCLUSIVE = "status flags", "exclusive mark"
# The owner before the mode, because a change of owner clears bits of the mode.
ASPECTS: tuple[Aspect, ...] = (
    (FLAGS, _get_flags, _set_flags),
    ("inode flags", _get_inode_flags, _set_inode_flags),
    ("owner", _get_owner, _set_owner),
    ("extended attributes", _get_attributes, _set_attributes),
    ("mode", _get_mode, _set_mode),
    (EXCLUSIVE, _get_exclusive, _set_exclusive),
)
