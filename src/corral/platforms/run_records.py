"""Record live runs, and the leftovers of dead runs, in one locked file per run.

The file lists every path that the run could leave behind. The run creates and locks the file before
it creates any of these paths. The lock ends with the run, so a run is dead if another process can
lock its file. Every start cleans up after dead runs, and so does `corral clean`.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.abi.private_directory import create_locked, lock, lock_dead, open_own, remove_locked
from corral.directories import directories, is_private
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SEPARATOR = "\n"
INSTALLER = "install-"
"""Prefix of the record of a process that goes on installing a package after its client has ended.
"""
NAME_OF_STATE = ".server"
"""Suffix of the file that contains a server's command, beside the home that the server keeps
between runs.
"""


class Budget:
    """Limits how many files one sweep removes.

    A sweep removes what dead runs have left behind, and every start of corral sweeps. A target can
    leave millions of files behind, and a start must not wait until all of them are gone.
    """

    def __init__(self, max_files: int | None = None) -> None:
        self._left = max_files

    def spend(self) -> None:
        """Count one file. Raise OSError when the budget is used up."""
        if self._left is not None:
            if self._left <= 0:
                raise OSError(0, "too many files for one sweep")
            self._left -= 1


@record
class Entry:
    name: str
    pid: int  # the supervisor's pid
    root: int  # the pid of the process at the top of the tree; 0 until that process exists
    started: int  # seconds since 1970
    residue: tuple[str, ...]  # paths that the run could leave behind
    command: tuple[str, ...]

    def is_installer(self) -> bool:
        return self.name.startswith(INSTALLER)


class Run:
    """Keeps the record of this run.

    If the record cannot be written, the run goes on. But it is not listed as a live run, and if it
    dies, its leftovers are not removed.
    """

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
        text = SEPARATOR.join(
            (*numbers, *self._residue, *(format_word(word) for word in self._command))
        )
        try:
            _overwrite(self._fd, text.encode(errors="surrogateescape"))
        except OSError:
            pass  # the disk is full, so this run is not listed

    def end(self) -> None:
        if self._fd >= 0:
            remove_locked(self.path, self._fd)
            self._fd = -1


def live() -> list[Entry]:
    found = [(name, _read(os.path.join(_directory(), name))) for name in _names()]
    return [entry for name, text in found if text and (entry := _parse(name, text))]


def is_run_name(text: str) -> bool:
    """Return whether a string has the form of a run's name: PID-XXXXXXXX."""
    pid, _, token = text.partition("-")
    return pid.isdecimal() and len(token) == 8 and not token.strip("0123456789abcdef")


def sweep(clean: Callable[[str, Budget], None], *, max_files: int | None = None) -> list[str]:
    """Call `clean` to remove the leftovers of dead runs. Return the removed paths.

    Remove at most `max_files` files, and leave the rest for the next sweep. `clean` itself checks
    whether it may remove a path.
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
            remove_locked(path, fd)
    return removed


def end(entry: Entry) -> str:
    """Kill the supervisor of a live run, and with it the whole run. Remove the run's record.

    Return the path of the record, or "" if the record no longer exists.
    """
    from corral.abi.signal_numbers import SIGKILL

    path = os.path.join(_directory(), entry.name)
    fd = open_own(path)
    if fd < 0:
        return ""
    try:
        # If this succeeds, the run has ended. Another process may have its pid, so kill nothing.
        lock(fd, wait=False)
    except BlockingIOError:
        try:
            os.kill(entry.pid, SIGKILL)
        except ProcessLookupError:
            pass  # the run has just ended
        lock(fd, wait=True)
    remove_locked(path, fd)
    return path


def _overwrite(fd: int, text: bytes) -> None:
    """Replace a record's content in one call, so that a killed run never leaves an empty file."""
    if sys.platform == "win32":
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, text)
    else:
        os.pwrite(fd, text, 0)


def _directory() -> str:
    return os.path.join(directories().cache, "runs")


def _names() -> list[str]:
    """Return the names of this user's records. Return an empty list if the directory is a symlink,
    or if another user owns it or can write to it.
    """
    try:
        for path in (directories().cache, _directory()):
            seen = os.lstat(path)
            if not stat.S_ISDIR(seen.st_mode) or not is_private(seen):
                return []
        return sorted(os.listdir(_directory()))
    except OSError:
        return []


def _read(path: str) -> str:
    """Return the content of a live run's record, or "" if the run is dead."""
    dead = lock_dead(path)
    fd = open_own(path) if dead < 0 else -1
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
        return None  # the run has not written its record yet
    return Entry(
        name=name,
        pid=pid,
        root=root,
        started=started,
        residue=tuple(lines[4 : 4 + count]),
        command=tuple(lines[4 + count :]),
    )


def format_word(word: str) -> str:
    """Replace SEPARATOR in an argument of the command, because it separates a record's fields."""
    return word.replace(SEPARATOR, " ")
