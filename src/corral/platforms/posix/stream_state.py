"""Undo a target's changes to the files and terminals behind its standard streams.

Through a descriptor that is open only for reading, a target can still change a file's mode, owner
and access control list. On a terminal it can change the settings, and suspend the output so that no
key resumes it. It can also set the exclusive mode, in which other processes cannot open the
terminal.

So corral keeps these files open during the run, and restores them at the end. It opens a named pipe
with O_PATH, because with any other descriptor corral would keep the pipe open, and the client would
not see that the target has closed it. Unnamed pipes and sockets are not restored, because no other
process can open them.

But other programs may have inherited the same unnamed pipe, with the same status flags. If the
target set O_NONBLOCK on it, their later writes could fail. So on Linux corral opens each unnamed
pipe again, and the target gets a descriptor with status flags of its own.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
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
# Linux's ioctl requests for terminals. On other systems they fail, so corral does not restore
# terminals there.
TIOCEXCL, TIOCNXCL, TIOCGEXCL = 0x540C, 0x540D, 0x80045440
F_OFD_SETLK, LOCKS_OF_OPEN_FILES = 37, (b"FLOCK", b"OFDLCK")
TCGETS, TCSETS, TCXONC, TCOON = 0x5401, 0x5402, 0x540A, 1


@record
class StreamStates:
    """The state that the streams had before the run.

    `streams` lists the streams that are files, terminals or named pipes, each as (name, corral's
    own descriptor, values in the order of ASPECTS). corral does not restore a value of None.
    """

    streams: tuple[tuple[str, int, tuple[object, ...]], ...]

    def restore(self) -> tuple[str, ...]:
        """Restore the values that differ, and return a line for each change."""
        for _, fd, _ in self.streams:
            _resume_output(fd)
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
    found = []
    for name, fd in zip(NAMES, stdio, strict=True):
        try:
            seen = os.fstat(fd)
        except OSError:
            continue  # the stream is closed
        own = _keep_open(fd, seen.st_mode)
        if own >= 0:
            # Any process that shares the open file can change the aspects in OF_OPEN_FILE. Only the
            # file's owner and root can change the other aspects, such as the mode. corral restores
            # the other aspects only as the owner. Even as root it does not change another user's
            # file.
            is_owner = seen.st_uid == os.geteuid()
            values = [
                _look(read, own) if is_owner or what in OF_OPEN_FILE else None
                for what, read, _ in ASPECTS
            ]
            found.append((name, own, tuple(values)))
    return StreamStates(streams=tuple(found))


def _keep_open(fd: int, mode: int) -> int:
    """Return another descriptor of a file, terminal or named pipe, or -1 for anything else."""
    if stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and os.isatty(fd)):
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    if sys.platform == "linux" and stat.S_ISFIFO(mode):
        own = os.open(f"/proc/self/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
        if os.readlink(f"/proc/self/fd/{own}").startswith("/"):
            return own
        os.close(own)
    return -1


def _at(fd: int) -> int | str:
    """Return what to pass to a call that changes the file, such as chmod.

    On Linux this is a path, because such calls refuse the O_PATH descriptor of a named pipe.
    Elsewhere it is the descriptor itself.
    """
    return f"/proc/self/fd/{fd}" if sys.platform == "linux" else fd


def _look(read: Callable[[int], object], fd: int) -> object:
    """Return the result of `read`, or None if the file system does not provide the value."""
    try:
        return read(fd)
    except OSError:
        return None


def _restore(name: str, fd: int, aspect: Aspect, before: object) -> str:
    what, read, write = aspect
    now = _look(read, fd)
    if before is None or now == before or (what == SETTINGS and now is None):
        return ""
    try:
        write(fd, before)
    except OSError as error:
        return f"the {what} of {name} changed during the run: not restored ({error.strerror})"
    if what == FLAGS:
        return ""  # not reported, because every event loop sets O_NONBLOCK
    how = "restored" if _look(read, fd) == before else "only partly restored"
    return f"the {what} of {name} changed during the run: {how}"


def _get_flags(fd: int) -> object:
    return fcntl.fcntl(fd, fcntl.F_GETFL)


def _set_flags(fd: int, value: object) -> None:
    if isinstance(value, int):
        fcntl.fcntl(fd, fcntl.F_SETFL, value)


def _get_locks(fd: int) -> object:
    """Return the kinds of locks that belong to the open file, not to a process.

    If the target takes such a lock, it remains after the run, because the client shares the open
    file.
    """
    if sys.platform != "linux":
        return None
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        rows = [line.split() for line in file if line.startswith(b"lock:")]
    return frozenset(row[2] for row in rows if row[2] in LOCKS_OF_OPEN_FILES)


def _set_locks(fd: int, value: object) -> None:
    """Release the locks that the target took. Do not take again the locks that it released, because
    that could block.
    """
    now = _get_locks(fd)
    if sys.platform == "linux" and isinstance(value, frozenset) and isinstance(now, frozenset):
        if b"FLOCK" in now - value:
            fcntl.flock(fd, fcntl.LOCK_UN)
        if b"OFDLCK" in now - value:
            fcntl.fcntl(fd, F_OFD_SETLK, struct.pack("=hhxxxxqqixxxx", fcntl.F_UNLCK, 0, 0, 0, 0))
        if value - now:
            raise OSError(errno.ENOLCK, "locks are not taken again")


def _get_owner(fd: int) -> object:
    seen = os.fstat(fd)
    return seen.st_uid, seen.st_gid


def _set_owner(fd: int, value: object) -> None:
    if isinstance(value, tuple):
        os.chown(_at(fd), *value)


def _get_attributes(fd: int) -> object:
    """Return the extended attributes, which include the access control list."""
    if sys.platform != "linux":
        return None
    return {name: os.getxattr(_at(fd), name) for name in _attribute_names(fd)}


def _attribute_names(fd: int) -> set[str]:
    """Return the names of the extended attributes. Leave out `security.*`, because the kernel
    itself removes some of these when a file is written.
    """
    if sys.platform != "linux":
        return set()
    return {name for name in os.listxattr(_at(fd)) if not name.startswith("security.")}


def _set_attributes(fd: int, value: object) -> None:
    if sys.platform == "linux" and isinstance(value, dict):
        for name in _attribute_names(fd) - set(value):
            os.removexattr(_at(fd), name)
        for name, content in value.items():
            if name not in _attribute_names(fd) or os.getxattr(_at(fd), name) != content:
                os.setxattr(_at(fd), name, content)


def _get_mode(fd: int) -> object:
    """Return the mode without the set-id bits, which a write clears and corral never restores."""
    return os.fstat(fd).st_mode & 0o1777


def _set_mode(fd: int, value: object) -> None:
    """Remove the bits of the mode that were added during the run.

    Do not add again the bits that were removed, because the user may have removed them.
    """
    if isinstance(value, int):
        os.chmod(_at(fd), os.fstat(fd).st_mode & value)


def _get_exclusive(fd: int) -> object:
    return fcntl.ioctl(fd, TIOCGEXCL, bytes(4)) != bytes(4)


def _set_exclusive(fd: int, value: object) -> None:
    fcntl.ioctl(fd, TIOCEXCL if value else TIOCNXCL)


def _is_foreground(fd: int) -> bool:
    """Return whether corral is in the foreground of this terminal.

    In the background corral must not change the terminal's settings, because the shell or another
    program is then using the terminal. The kernel would suspend corral if it tried.
    """
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False


def _resume_output(fd: int) -> None:
    try:
        if _is_foreground(fd):
            fcntl.ioctl(fd, TCXONC, TCOON)
    except OSError:
        pass  # the value of TCXONC is Linux's, so the call fails on other systems


def _get_settings(fd: int) -> object:
    return fcntl.ioctl(fd, TCGETS, bytes(64)) if _is_foreground(fd) else None


def _set_settings(fd: int, value: object) -> None:
    if isinstance(value, bytes):
        fcntl.ioctl(fd, TCSETS, value)


FLAGS, LOCKS, EXCLUSIVE, SETTINGS = "status flags", "locks", "exclusive mark", "settings"
OF_OPEN_FILE = (FLAGS, LOCKS, EXCLUSIVE, SETTINGS)
"""The entries of ASPECTS that any process sharing the open file can change, even if it does not own
the file.
"""
# The owner is restored before the mode, because changing the owner clears bits of the mode.
ASPECTS: tuple[Aspect, ...] = (
    (FLAGS, _get_flags, _set_flags),
    (LOCKS, _get_locks, _set_locks),
    ("owner", _get_owner, _set_owner),
    ("extended attributes", _get_attributes, _set_attributes),
    ("mode", _get_mode, _set_mode),
    (EXCLUSIVE, _get_exclusive, _set_exclusive),
    (SETTINGS, _get_settings, _set_settings),
)
