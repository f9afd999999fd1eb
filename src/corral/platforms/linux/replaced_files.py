"""Watch the covers. A cover is a mount that hides or protects a path.

The kernel detaches a cover when a process outside the sandbox's mount namespace removes the covered
path, or renames another file over it. To cover the path again would be too late, because the target
may have used it in the meantime. So corral only reports the lost cover, and ends the run if the
plan says so.

inotify reports the removal of a covered file, but not that of a directory that a process has open.
So corral also watches the directory above.
"""

from __future__ import annotations

import errno
import os
import select
import struct
import sys
import time

from corral.abi import linux as abi
from corral.paths.posix import is_inside
from corral.safe_text import printable

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from corral.plan.model import Cover, Covers
    from corral.platforms.contract import Child

EVENT = struct.Struct("=iIII")
GONE = abi.IN_MOVE_SELF | abi.IN_DELETE_SELF
SYSCTLS = {
    errno.EMFILE: "; raise the sysctl fs.inotify.max_user_instances",
    errno.ENOSPC: "; raise the sysctl fs.inotify.max_user_watches",
}
MAX_READ = 1 << 16
MAX_LINE = 2000
BUSY_BYTES = 4096
PAUSE_SECONDS = 0.1
"""The pause after many events at once, so that a target cannot keep the supervisor busy."""


class ReplacedFiles:
    """Watches the covers, as a service of the supervisor.

    `replaced` contains a sentence for each path that lost its cover.

    The supervisor polls an epoll descriptor, which reports the events of the inotify descriptor.
    After many events at once, the inotify descriptor is removed from the epoll descriptor for
    PAUSE_SECONDS. So a target that causes events cannot keep the supervisor busy.
    """

    def __init__(self, covers: Covers, child: Child) -> None:
        self.replaced: list[str] = []
        self._child = child
        self._strict = covers.strict
        self._covers = {cover.path: cover for cover in covers.names}
        self._paths: dict[int, list[str]] = {}
        self._paused_until: float | None = None
        self._inotify = -1
        self._epoll = select.epoll()
        self._directories = {path for cover in covers.names for path in _directories(cover)}
        try:
            self._watch()
        except OSError as error:
            why = f"{error.strerror}{SYSCTLS.get(error.errno or 0, '')}"
            self._warn(f"cannot watch the hidden and read-only paths: {why}", fatal=self._strict)
        self._compare(self._covers)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def deadline(self) -> float | None:
        return self._paused_until

    def run_ready(self) -> None:
        if self._inotify < 0:
            return
        if self._paused_until is not None:
            if time.monotonic() < self._paused_until:
                return
            self._paused_until = None
            self._epoll.register(self._inotify, select.EPOLLIN)
        try:
            data = os.read(self._inotify, MAX_READ)
        except BlockingIOError:
            return
        for watch, mask, name in _events(data):
            self._handle(watch, mask, name)
        if len(data) > BUSY_BYTES:
            self._epoll.unregister(self._inotify)
            self._paused_until = time.monotonic() + PAUSE_SECONDS

    def close(self) -> None:
        self._epoll.close()
        if self._inotify >= 0:
            os.close(self._inotify)

    def _watch(self) -> None:
        self._inotify = abi.inotify_init1()
        self._epoll.register(self._inotify, select.EPOLLIN)
        for path in self._covers:
            self._add(path, abi.IN_ATTRIB | GONE)
        for path in self._directories:
            self._add(path, GONE)
            self._add(os.path.dirname(path), abi.IN_DELETE)

    def _add(self, path: str, events: int) -> None:
        flags = abi.IN_DONT_FOLLOW | abi.IN_MASK_ADD
        try:
            watch = abi.inotify_add_watch(self._inotify, path, events | flags)
        except (PermissionError, FileNotFoundError, NotADirectoryError):
            # If access is denied, it is denied to the target too. If the path is missing,
            # `_compare` reports it.
            return
        paths = self._paths.setdefault(watch, [])
        if path not in paths:
            paths.append(path)

    def _handle(self, watch: int, mask: int, name: str) -> None:
        paths = self._paths.get(watch, [])
        if mask & abi.IN_Q_OVERFLOW:
            self._compare(self._covers)
        elif mask & GONE:
            self._lose(paths)
        elif mask & abi.IN_DELETE:
            names = [f"{path}/{name}" for path in paths]
            self._lose(path for path in names if path in self._directories)
        elif mask & abi.IN_ATTRIB:
            self._compare(paths)

    def _compare(self, paths: Iterable[str]) -> None:
        """Report the paths where the covered file is gone or has been replaced."""
        for path in list(paths):
            cover = self._covers.get(path)
            if cover is not None and _identity(path) != (cover.device, cover.inode):
                self._lose([path])

    def _lose(self, paths: Iterable[str]) -> None:
        for path in paths:
            for cover in [one for one in self._covers.values() if is_inside(one.path, path)]:
                del self._covers[cover.path]
                self._report(cover)

    def _report(self, cover: Cover) -> None:
        text = f"{printable(cover.path)} was replaced and lost its cover, so the target can use it"
        self._warn(text, fatal=self._strict or cover.repository)

    def _warn(self, text: str, *, fatal: bool) -> None:
        if fatal:
            text += "; the run was stopped"
            self._child.kill()
        self.replaced.append(text)
        line = f"corral: warning: {text}".encode(errors="backslashreplace")[:MAX_LINE] + b"\n"
        from corral.platforms.posix.unblocked_write import write_at_once

        try:
            write_at_once(2, line)
        except OSError:
            pass  # stderr does not take the line, but the run's report repeats the warning


def _events(data: bytes) -> Iterator[tuple[int, int, str]]:
    at = 0
    while at < len(data):
        watch, mask, _, length = EVENT.unpack_from(data, at)
        at += EVENT.size
        yield watch, mask, os.fsdecode(data[at : at + length].rstrip(b"\0"))
        at += length


def _directories(cover: Cover) -> Iterator[str]:
    """Yield the directories to watch, because the path loses its cover if one of them is removed.

    These are the directories between the grant and the covered path, and the covered path itself if
    it is a directory.
    """
    path = cover.path if cover.directory else os.path.dirname(cover.path)
    while len(path) > len(cover.top):
        yield path
        path = os.path.dirname(path)


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.lstat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino
