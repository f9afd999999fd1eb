"""What a tree of processes uses, read from /proc where no cgroup counts.

Init is the root of the tree and inherits every orphan, so all processes are below it. Memory is the
anonymous and shared memory of every process, plus the private space and memfds. That is a cheap
upper bound, because shared pages count once for each process; an exact measurement divides them by
their users, as a cgroup charges them once. CPU time of ended processes is their parents'.
"""

from __future__ import annotations

import errno
import os
import sys

from corral.platforms.contract import Usage

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    Inode = tuple[int, int]

CPU_FIELDS = slice(11, 15)
"""utime, stime, cutime and cstime in /proc/PID/stat, counted behind the name."""
THREADS = 17
UNREADABLE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Errors of this process, not of the tree. To count them as no use would switch every limit off."""


def measure(root: int, *, exact: bool = False, objects: int = 0) -> Usage:
    """Measure the descendants of `root`, which is corral's and counts only for reaped children.

    `objects` are the bytes of the tree's System V objects, attached or not.
    """
    tick = os.sysconf("SC_CLK_TCK")
    ticks = tasks = 0
    pids: list[int] = []
    memfds: dict[Inode, int] = {}
    device, space = -1, 0
    for pid in (root, *tree(root)):
        try:
            stat = _stat(pid)
        except (ValueError, IndexError):
            continue  # it has ended meanwhile
        except OSError as error:
            _check_readable(error)
            continue
        if pid == root:
            ticks += sum(stat[CPU_FIELDS][2:])
            continue
        ticks += sum(stat[CPU_FIELDS])
        tasks += stat[THREADS]
        pids.append(pid)
        memfds.update(_memfds(pid))
        if device < 0:
            device, space = _private_space(pid)
    memory = objects + space + sum(memfds.values())
    if exact:
        segments = objects > 0
        memory += sum(_proportional(pid, memfds, device, segments=segments) for pid in pids)
    else:
        memory += sum(map(_resident, pids))
    return Usage(cpu=ticks / tick, memory=memory, tasks=tasks)


def tree(root: int) -> list[int]:
    """Return every descendant of `root`; one that forks meanwhile may be missed."""
    found: list[int] = []
    waiting = [root]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(pid: int) -> list[int]:
    """Read the lists of all threads: a child belongs to the thread that forked it."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError as error:
        _check_readable(error)
    return found


def _check_readable(error: OSError) -> None:
    """Return if the process has ended or hides; raise if this process cannot read anything."""
    if error.errno in UNREADABLE:
        raise error


def _stat(pid: int) -> list[int]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b") ")[2].split()
    return [0, *(int(field) for field in fields[1:40])]


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return kilobytes(file, (b"RssAnon:", b"RssShmem:"))
    except OSError as error:
        _check_readable(error)
        return 0


def _proportional(pid: int, memfds: Container[Inode], device: int, *, segments: bool) -> int:
    """Count shared pages by their share, without maps of files that are counted as a whole."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            memory = kilobytes(file, (b"Pss_Anon:", b"Pss_Shmem:"))
        with open(f"/proc/{pid}/smaps", "rb") as file:
            elsewhere = counted_elsewhere(file, memfds, device, segments=segments)
        return max(0, memory - elsewhere)
    except OSError:
        return _resident(pid)  # it hides, or has ended: then this is 0


def kilobytes(lines: Iterable[bytes], names: tuple[bytes, ...]) -> int:
    """Return the sum of the named rows, in bytes."""
    return sum(int(line.split()[1]) for line in lines if line.startswith(names)) * 1024


def counted_elsewhere(
    lines: Iterable[bytes], memfds: Container[Inode], device: int, *, segments: bool = False
) -> int:
    """Return the bytes in a process's smaps of files in memory that are counted as files."""
    found = 0
    mapped = False
    for line in lines:
        first = line[:1]
        # The head of a mapping begins with a hexadecimal address; its rows are capitalized.
        if first.isdigit() or b"a" <= first <= b"f":
            where = _inode(line)
            mapped = where in memfds or where[0] == device or (segments and _is_segment(line))
        elif mapped and line.startswith(b"Pss:"):
            found += int(line.split()[1])
        elif mapped and line.startswith(b"Anonymous:"):
            found -= int(line.split()[1])  # changed in private: no longer the file's
    return max(0, found) * 1024


def _is_segment(head: bytes) -> bool:
    """Compare the start of the mapping's name: its maker chooses the end of a memfd's name."""
    return head.split(None, 5)[-1].startswith(b"/SYSV")


def _inode(head: bytes) -> Inode:
    """Return (device, inode) of `start-end perms offset major:minor inode path`."""
    device, inode = head.split(None, 5)[3:5]
    major, minor = device.split(b":")
    return os.makedev(int(major, 16), int(minor, 16)), int(inode)


def _memfds(pid: int) -> dict[Inode, int]:
    found: dict[Inode, int] = {}
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError as error:
        _check_readable(error)
        return found
    for name in names:
        path = f"/proc/{pid}/fd/{name}"
        try:
            if os.readlink(path).startswith("/memfd:"):
                seen = os.stat(path)
                found[seen.st_dev, seen.st_ino] = seen.st_blocks * 512
        except OSError:
            continue  # closed meanwhile: the others still count
    return found


def _private_space(pid: int) -> tuple[int, int]:
    """Return (device, bytes) of the one tmpfs that is behind /tmp, HOME and /dev/shm."""
    path = f"/proc/{pid}/root/dev/shm"
    try:
        device, seen = os.stat(path).st_dev, os.statvfs(path)
    except OSError:
        return -1, 0
    if device == _own_device():
        return -1, 0  # no private root: this is the host's
    return device, (seen.f_blocks - seen.f_bfree) * seen.f_frsize


def _own_device() -> int:
    try:
        return os.stat("/dev/shm").st_dev  # noqa: S108 - only to tell them apart
    except OSError:
        return -1
