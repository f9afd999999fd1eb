"""Change modes and times of files that a target may write to, for targets without namespaces.

Landlock does not control these changes, so the seccomp filter passes the calls to the supervisor,
which makes them on the target's behalf. A "place" is a file or directory that the target may write
to.

The supervisor copies a call's path once, and looks it up in a place. The kernel refuses any path
that leads out of the place. So the supervisor finds only files inside a place, even if the target
replaces files in the meantime. Paths outside all places are not looked up at all.

A separate thread makes the lookups and changes, because they can block, for example while the
target writes to the file. The thread has the target's ids and no capabilities, so the kernel checks
ownership as it would for the target.
"""

from __future__ import annotations

import _queue
import _thread
import errno
import os
import stat
import struct
import sys
import time

from corral.abi import linux as abi
from corral.abi import linux_notifications
from corral.platforms.linux import calling_thread
from corral.platforms.linux.notified_calls import DENIED, Decision
from corral.record import record, replace

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal

    from corral.abi.linux_notifications import Notification
    from corral.platforms.linux.calling_thread import CallingThread

    Identity = tuple[int, int]
    Times = Literal["", "utimbuf", "timeval", "timespec"]

LATER = Decision(verdict="answer_later")
BURST_SECONDS = 2.0
"""The processor time that a burst of calls may use. It is enough for about 10 000 calls, so a git
clone or an archive of a thousand files is not delayed.
"""
SHARE = 0.06
"""The share of a processor that calls may use once BURST_SECONDS are used up. It is enough for
about 150 calls per second.
"""
LISTENER_SECONDS = 0.0001
"""The processor time that the listener itself needs for a call."""
MAX_JOBS = 1024
"""The maximum number of calls that may wait for the thread. Without it a target could add calls
endlessly, by killing its waiting threads and starting new ones.
"""
MODE_BITS = 0o1777
KINDS = frozenset((stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK))
FLAGS = abi.AT_SYMLINK_NOFOLLOW | abi.AT_EMPTY_PATH
RESOLVE = abi.RESOLVE_BENEATH | abi.RESOLVE_NO_MAGICLINKS | abi.RESOLVE_NO_XDEV
"""Mounts below a place are not entered, because a lookup on a network file system could block
forever.
"""
MAX_LINKS, MAX_PARTS = 16, 64
"""The kernel follows symlinks that stay inside a place. corral itself follows symlinks that lead
out of a place: at most MAX_LINKS, and only among the first MAX_PARTS names of a path.
"""
MAX_RETRIES = 8
"""How many times corral tries to look up a path with `..` while other processes move files."""
MICROSECONDS = 1_000_000
OWN_DESCRIPTORS = ("/proc/self/fd/", "/proc/thread-self/fd/")
NOT_HERE = frozenset((errno.EXDEV, errno.ENOSYS))
"""The errors of a lookup that left the place (EXDEV) or for which openat2 is missing (ENOSYS)."""


@record
class Place:
    """A file or directory that the target may change, with everything in it.

    `fd` was opened with O_PATH. `path` is its path at the start of the run, and `written` the path
    as the user wrote it, which may contain symlinks.
    """

    fd: int
    path: str
    written: str

    def names(self) -> tuple[str, ...]:
        """Return the paths that the target may use for the place. If the place has been moved, this
        is only its new path.
        """
        now = os.readlink(f"/proc/self/fd/{self.fd}")
        return (now, self.written) if now == self.path else (now,)


@record
class Arguments:
    """The positions of a call's arguments, or -1 for arguments that the call does not have.

    `change` is the position of the mode, or of the pointer to the times.
    """

    change: int
    times: Times = ""
    path: int = -1
    directory: int = -1
    flags: int = -1


CALLS = {
    "chmod": Arguments(path=0, change=1),
    "fchmod": Arguments(directory=0, change=1),
    "fchmodat": Arguments(directory=0, path=1, change=2),
    "fchmodat2": Arguments(directory=0, path=1, change=2, flags=3),
    "utime": Arguments(path=0, change=1, times="utimbuf"),
    "utimes": Arguments(path=0, change=1, times="timeval"),
    "futimesat": Arguments(directory=0, path=1, change=2, times="timeval"),
    "utimensat": Arguments(directory=0, path=1, change=2, times="timespec", flags=3),
}


class FileChanges:
    """Changes modes and times of files for the target, as far as this is allowed. A thread of its
    own makes the changes and answers the target's calls.

    `uid` and `gid` are the target's ids. `own` is the (device, inode) of the run's directory in
    /tmp, which contains the target's private directories, but belongs to corral. This directory is
    never changed, even if the user grants all of /tmp.
    """

    def __init__(self, places: Sequence[Place], uid: int, gid: int, own: Identity) -> None:
        self._places = places
        self._own = own
        self._uid = uid
        self._gid = gid
        self._listener = -1
        self._jobs: _queue.SimpleQueue[tuple[str, Notification] | None] = _queue.SimpleQueue()

    def pause_seconds(self) -> float:
        return 0.0

    def decide(self, call: str, request: Notification) -> Decision:
        try:
            if self._listener < 0:
                self._start(request.listener)
        except (OSError, RuntimeError):
            # There are too many open files or threads. The next call tries to start the thread
            # again.
            return DENIED
        if self._jobs.qsize() >= MAX_JOBS:
            return DENIED
        self._jobs.put((call, replace(request, listener=self._listener)))
        return LATER

    def release(self) -> None:
        """Close the files of the places.

        If the thread is running, tell it to close them, and do not wait for it. A file system may
        be blocking the thread.
        """
        if self._listener >= 0:
            self._jobs.put(None)
        else:
            self._close()

    def _start(self, listener: int) -> None:
        """Start the thread with its own copy of the listener. Only the thread closes this copy."""
        copy = os.dup(listener)
        try:
            _thread.start_new_thread(self._work, (copy,))
        except RuntimeError:
            os.close(copy)
            raise
        self._listener = copy

    def _work(self, listener: int) -> None:
        finder = Finder(self._places, self._own) if _has_become(self._uid, self._gid) else None
        budget = Budget(time.monotonic)
        while (job := self._jobs.get()) is not None:
            call, request = job
            if not linux_notifications.is_waiting(request):
                continue  # the caller was killed while its call waited for this thread
            started = time.thread_time()
            error = _change(finder, call, request) if finder is not None else errno.EPERM
            try:
                linux_notifications.send(listener, request.id, error=error)
            except OSError:
                pass  # the caller was killed before it got the answer
            if pause := budget.use(time.thread_time() - started + LISTENER_SECONDS):
                time.sleep(pause)
        os.close(listener)
        self._close()

    def _close(self) -> None:
        for place in self._places:
            os.close(place.fd)


class Budget:
    """Limits the processor time that a flood of calls can use."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = BURST_SECONDS
        self._seen = clock()

    def use(self, seconds: float) -> float:
        """Count processor time that was used. Return the seconds to wait before the next call."""
        now = self._clock()
        self._left = min(BURST_SECONDS, self._left + (now - self._seen) * SHARE) - seconds
        self._seen = now
        return max(0.0, -self._left / SHARE)


def _has_become(uid: int, gid: int) -> bool:
    """Permanently give this thread the target's ids, and drop its capabilities.

    Return whether that worked.
    """
    try:
        if uid != os.geteuid():
            abi.syscall("setgroups", 0, None)
            abi.setresgid(gid, gid, gid)
            abi.setresuid(uid, uid, uid)
        abi.capset_empty()
    except OSError:
        return False
    return True


def _change(finder: Finder, call: str, request: Notification) -> int:
    """Change the mode or times of a file on the target's behalf. Return 0 or the error number."""
    try:
        ids = calling_thread.TargetIds(uid=-1, gid=-1)  # this thread already has the target's ids
        thread = calling_thread.CallingThread(request, ids)
        _do(finder, thread, CALLS[call], request.arguments)
    except calling_thread.HiddenMemoryError:
        return errno.EPERM
    except OSError as error:
        return error.errno or errno.EPERM
    except ValueError:
        return errno.EINVAL
    return 0


def _do(
    finder: Finder, thread: CallingThread, given: Arguments, arguments: tuple[int, ...]
) -> None:
    change = arguments[given.change]
    times = read_times(thread, given.times, change) if given.times else None
    fd = find_file(finder, thread, given, arguments)
    try:
        seen = os.fstat(fd)
        if stat.S_IFMT(seen.st_mode) not in KINDS or finder.own == (seen.st_dev, seen.st_ino):
            raise _refused()
        if given.times:
            abi.waiting_syscall("utimensat", fd, b"", times, abi.AT_EMPTY_PATH)
        elif stat.S_ISLNK(seen.st_mode):
            raise OSError(errno.EOPNOTSUPP, "a symlink has no mode")
        else:
            os.chmod(f"/proc/self/fd/{fd}", change & MODE_BITS)
    finally:
        os.close(fd)


def find_file(
    finder: Finder, thread: CallingThread, given: Arguments, arguments: tuple[int, ...]
) -> int:
    """Return an O_PATH descriptor of the file that a call would change.

    Read the caller's memory and descriptors first, and check afterwards that the caller is still
    waiting. Otherwise corral may have read another process, which got the pid after the caller
    had ended.
    """
    flags = calling_thread.to_int(arguments[given.flags]) if given.flags >= 0 else 0
    if flags & ~FLAGS:
        raise OSError(errno.EINVAL, "unknown flags")
    directory = (
        calling_thread.to_int(arguments[given.directory]) if given.directory >= 0 else abi.AT_FDCWD
    )
    pointer = arguments[given.path] if given.path >= 0 else 0
    if given.path < 0 or (given.times and not pointer and directory != abi.AT_FDCWD):
        if flags:
            raise OSError(errno.EINVAL, "the call has flags, but no path")
        return _find_open_file(finder, thread, directory, by_path=False)
    text = os.fsdecode(thread.read_text(pointer))
    follow = not flags & abi.AT_SYMLINK_NOFOLLOW
    if not text:
        if not flags & abi.AT_EMPTY_PATH:
            raise FileNotFoundError(errno.ENOENT, "the path is empty")
        if directory != abi.AT_FDCWD:
            return _find_open_file(finder, thread, directory)
        text = "."
    if follow and (number := _own_descriptor(text)) is not None:
        return _find_open_file(finder, thread, number)
    if not text.startswith("/"):
        at_cwd = directory == abi.AT_FDCWD
        base = thread.working_directory() if at_cwd else thread.path_of(directory)
        text = join(base, text)
    thread.check()
    return finder.find(text, follow=follow)


def _find_open_file(
    finder: Finder, thread: CallingThread, number: int, *, by_path: bool = True
) -> int:
    """Find a file that the caller has open. Raise OSError if its path now leads to another file.

    `by_path` is true for a call with a path such as /proc/self/fd/3, and false for a call with a
    descriptor, such as fchmod, which fails if the descriptor was opened with O_PATH.
    """
    path = thread.path_of(number)
    if not by_path and thread.flags(number) & os.O_PATH:
        raise OSError(errno.EBADF, "the descriptor was opened with O_PATH")
    fd = finder.find(path, follow=False)
    try:
        seen = os.fstat(fd)
        same = thread.identity(number) == (seen.st_dev, seen.st_ino)
        thread.check()
        if not same:
            raise _refused()
    except OSError:
        os.close(fd)
        raise
    return fd


def _own_descriptor(text: str) -> int | None:
    """Return N if the path is /proc/self/fd/N, or None.

    C libraries use such paths to change the mode of an open file.
    """
    for start in OWN_DESCRIPTORS:
        number = text.removeprefix(start)
        if number != text and number.isascii() and number.isdecimal() and len(number) < 10:
            return int(number)
    return None


def join(base: str, text: str) -> str:
    """Join a relative path to `base`, and resolve the `..` that the path starts with.

    This is safe because `base` contains no symlinks. Any later `..` stays in the path, because the
    name before it may be a symlink.
    """
    parts = text.split("/")
    while parts and parts[0] in {"", ".", ".."}:
        if parts.pop(0) == "..":
            base = os.path.dirname(base)
    return f"{base}/{'/'.join(parts)}"


def clean(text: str) -> str:
    """Remove empty names and `.` from an absolute path. Keep a trailing slash, because it makes the
    kernel follow a symlink at the end of the path.
    """
    parts = [part for part in text.split("/") if part not in {"", "."}]
    ending = "/" if text.endswith(("/", "/.")) else ""
    return f"/{'/'.join(parts)}{ending}"


class Finder:
    """Finds files by their paths, but only inside places."""

    def __init__(self, places: Sequence[Place], own: Identity = (0, 0)) -> None:
        self._places = places
        self.own = own

    def find(self, text: str, *, follow: bool) -> int:
        """Return an O_PATH descriptor of a file in a place. Raise OSError (EPERM) for other paths.

        The kernel follows symlinks inside a place. This function follows symlinks from one place to
        another, for example from the private home to a granted directory.
        """
        for _ in range(MAX_LINKS):
            place, name, rest = self._locate(clean(text))
            if not rest:
                return os.dup(place.fd)
            try:
                return open_beneath(place.fd, rest, follow=follow)
            except OSError as error:
                if error.errno == errno.ENOSYS:
                    raise _refused() from None
                if error.errno != errno.EXDEV:
                    raise
            text = _follow_link(place.fd, name, rest, follow=follow)
        raise OSError(errno.ELOOP, "too many links")

    def _locate(self, text: str) -> tuple[Place, str, str]:
        """Find the innermost place that contains a path.

        Return the place, its path, and the rest of the given path.
        """
        found = [
            (len(name), place, name)
            for place in self._places
            for name in place.names()
            if text == name or text.startswith(name.rstrip("/") + "/")
        ]
        if not found:
            raise _refused()
        length, place, name = max(found, key=lambda one: one[0])
        return place, name, text[length:].lstrip("/")


def open_beneath(directory: int, path: str, *, follow: bool) -> int:
    """Open a path beneath `directory`. Raise OSError (EXDEV) if the path leads out of the
    directory.
    """
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    how = struct.pack("=QQQ", flags, 0, RESOLVE)
    for _ in range(MAX_RETRIES):
        try:
            return abi.waiting_syscall("openat2", directory, os.fsencode(path), how, len(how))
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
    raise _refused()


def _follow_link(directory: int, name: str, rest: str, *, follow: bool) -> str:
    """Return the path with its first symlink replaced by the symlink's content.

    Raise OSError (EPERM) if the path has no symlink, or leaves the place before the first one.
    """
    parts = rest.rstrip("/").split("/")
    follow = follow or rest.endswith("/")
    last = len(parts) if follow else len(parts) - 1
    for at in range(1, min(last, MAX_PARTS) + 1):
        try:
            fd = open_beneath(directory, "/".join(parts[:at]), follow=False)
        except OSError as error:
            if error.errno in NOT_HERE:
                raise _refused() from None
            raise
        try:
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                continue
            link = os.readlink("", dir_fd=fd)
        finally:
            os.close(fd)
        above = os.path.normpath("/".join((name, *parts[: at - 1])))
        start = link if link.startswith("/") else join(above, link)
        return "/".join((start, *parts[at:])) + ("/" if rest.endswith("/") else "")
    raise _refused()


def read_times(thread: CallingThread, kind: Times, pointer: int) -> bytes | None:
    """Return the access and modification times as two struct timespec.

    Return None if the caller wants the current time.
    """
    if not pointer:
        return None
    if kind == "timespec":
        return thread.read(pointer, 32)
    if kind == "utimbuf":
        accessed, modified = struct.unpack("=qq", thread.read(pointer, 16))
        return struct.pack("=qqqq", accessed, 0, modified, 0)
    accessed, micro, modified, micro2 = struct.unpack("=qqqq", thread.read(pointer, 32))
    if not (0 <= micro < MICROSECONDS and 0 <= micro2 < MICROSECONDS):
        raise OSError(errno.EINVAL, "the value is not a time")
    return struct.pack("=qqqq", accessed, micro * 1000, modified, micro2 * 1000)


def _refused() -> OSError:
    return PermissionError(errno.EPERM, "outside the writable places")
