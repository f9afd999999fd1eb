"""Which runs are alive, and what dead ones left: one locked file a run.

The file is made and locked before anything that could be left behind, and names all of it. Whoever
can lock it later knows that its run is dead, and cleans up: every start does, and `corral sweep`.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.directories import directories, is_private
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SEPARATOR = "\n"
FLAGS: int = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOINHERIT", 0)
)
# Far behind the end: Windows' locks keep others from reading what they cover.
LOCKED_BYTE = 1 << 30


class Budget:
    """The number of files that one sweep may remove. A target can leave millions of them, and a
    start must not wait for all.
    """

    def __init__(self, max_files: int | None = None) -> None:
        self._left = max_files

    def spend(self) -> None:
        """Count one file; OSError when the budget is used up."""
        if self._left is not None:
            if self._left <= 0:
                raise OSError(0, "too many files for one sweep")
            self._left -= 1


@record
class Entry:
    """`root` is the process that the tree hangs below, 0 until it is born."""

    name: str
    pid: int
    root: int
    started: int
    residue: tuple[str, ...]
    command: tuple[str, ...]


class Run:
    """Our own entry; a host that cannot keep one only loses the list and the sweep."""

    def __init__(self, name: str, *, residue: Sequence[str], command: Sequence[str]) -> None:
        self.path = os.path.join(_directory(), name)
        self._residue = tuple(residue)
        self._command = tuple(command)
        try:
            self._fd = create_locked(self.path)
        except OSError:
            self._fd = -1
        self.started(0)

    def started(self, root: int) -> None:
        if self._fd < 0:
            return
        import time

        numbers = (str(os.getpid()), str(root), str(int(time.time())), str(len(self._residue)))
        text = SEPARATOR.join((*numbers, *self._residue, *(_line(word) for word in self._command)))
        try:
            _overwrite(self._fd, text.encode(errors="surrogateescape"))
        except OSError:
            pass  # no space: then there is no list

    def end(self) -> None:
        if self._fd >= 0:
            _discard(self.path, self._fd)
            self._fd = -1


def live() -> list[Entry]:
    found = [(name, _read(os.path.join(_directory(), name))) for name in _names()]
    return [entry for name, text in found if text and (entry := _parse(name, text))]


def is_run_name(text: str) -> bool:
    """Return whether a plan names its run like this: PID-XXXXXXXX."""
    pid, _, token = text.partition("-")
    return pid.isdecimal() and len(token) == 8 and not token.strip("0123456789abcdef")


def sweep(clean: Callable[[str, Budget], None], *, max_files: int | None = None) -> list[str]:
    """Remove what dead runs left with `clean`, up to `max_files` files, and return the paths.

    What is left over is tried again by the next sweep. `clean` judges a path by itself.
    """
    removed: list[str] = []
    budget = Budget(max_files)
    for name in _names():
        path = os.path.join(_directory(), name)
        fd = lock_dead(path)
        if fd < 0:
            continue
        with open(fd, "rb", closefd=False) as file:
            entry = _parse(name, file.read().decode(errors="surrogateescape"))
        found = [left for left in (entry.residue if entry else ()) if os.path.lexists(left)]
        for left in found:
            clean(left, budget)
        resisting = [left for left in found if os.path.lexists(left)]
        removed += [left for left in found if left not in resisting]
        if resisting:
            os.close(fd)
        else:
            _discard(path, fd)
    return removed


def _discard(path: str, fd: int) -> None:
    """While it is locked, but on Windows: nobody deletes there what is open."""
    if sys.platform == "win32":
        os.close(fd)
        _unlink(path)
    else:
        _unlink(path)
        os.close(fd)


def _overwrite(fd: int, text: bytes) -> None:
    """What is there, in one call: at no moment does a killed run leave an empty file."""
    if sys.platform == "win32":
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, text)
    else:
        os.pwrite(fd, text, 0)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # somebody emptied the directory, or made it read-only


def _directory() -> str:
    return os.path.join(directories().cache, "runs")


def _names() -> list[str]:
    """Return the records of this user. Another user's directory, or a link, has none."""
    try:
        for path in (directories().cache, _directory()):
            seen = os.lstat(path)
            if not stat.S_ISDIR(seen.st_mode) or not is_private(seen):
                return []
        return sorted(os.listdir(_directory()))
    except OSError:
        return []


def create_locked(path: str) -> int:
    """Return the descriptor of a locked file; make it again if a sweep took it in between.

    A file that is there already is not used, because another user may have put it there.
    """
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | FLAGS, 0o600)
        _lock(fd, wait=True)
        if _is_same(fd, path):
            return fd
        os.close(fd)


def _lock(fd: int, *, wait: bool) -> None:
    """Let go by the kernel when the process ends, however it ends. OSError if another holds it."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(fd, LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        os.lseek(fd, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_dead(path: str) -> int:
    """The descriptor of a dead run's file, locked; -1 for a living one and what is no such file.

    Only one's own file is believed: what it names is removed, and a directory may be another's.
    """
    fd = _open_own(path)
    try:
        if fd >= 0:
            _lock(fd, wait=False)
            if _is_same(fd, path):
                return fd
    except OSError:
        pass
    if fd >= 0:
        os.close(fd)
    return -1


def _open_own(path: str) -> int:
    """A regular file of this user's, never through a link; -1 for anything else."""
    try:
        fd = os.open(path, os.O_RDWR | getattr(os, "O_NONBLOCK", 0) | FLAGS)
    except OSError:
        return -1
    if _is_own(os.fstat(fd)):
        return fd
    os.close(fd)
    return -1


def _is_own(seen: os.stat_result) -> bool:
    """On Windows the directory lies in the user's profile, where nobody else may make a file."""
    if sys.platform == "win32":
        return stat.S_ISREG(seen.st_mode)
    return stat.S_ISREG(seen.st_mode) and (seen.st_uid, seen.st_nlink) == (os.geteuid(), 1)


def _is_same(fd: int, path: str) -> bool:
    try:
        return os.fstat(fd).st_ino == os.stat(path).st_ino
    except FileNotFoundError:
        return False


def _read(path: str) -> str:
    """What a living run wrote; nothing for a dead one."""
    dead = lock_dead(path)
    fd = _open_own(path) if dead < 0 else -1
    if dead >= 0:
        os.close(dead)
    if fd < 0:
        return ""
    with open(fd, "rb") as file:
        return file.read().decode(errors="surrogateescape")


def _parse(name: str, text: str) -> Entry | None:
    lines = text.split(SEPARATOR)
    try:
        pid, root, started, count = map(int, lines[:4])
    except ValueError:
        return None  # not written yet
    return Entry(
        name=name,
        pid=pid,
        root=root,
        started=started,
        residue=tuple(lines[4 : 4 + count]),
        command=tuple(lines[4 + count :]),
    )


def _line(word: str) -> str:
    return word.replace(SEPARATOR, " ")
