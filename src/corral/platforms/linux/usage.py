"""What a tree uses, seen from outside: for hosts where no cgroup counts.

init is the root of the tree and inherits every orphan, so all of it hangs below. Memory is
anonymous and shared memory of every process plus what lies in the private space and in memfds. That
is a cheap bound from above, since pages that processes share count once for each: an exact look
divides them by their users, as a cgroup charges them once. CPU time of ended processes is their
parents'.
"""

from __future__ import annotations

import errno
import os
import sys

from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    Inode = tuple[int, int]

CPU_FIELDS = slice(11, 15)
"""utime, stime, cutime and cstime in /proc/PID/stat, counted behind the name."""
THREADS = 17
BLIND = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""What keeps us from looking. Counted as nothing used, it would let every limit go."""


@record
class Usage:
    cpu: float
    memory: int
    tasks: int


def measure(root: int, *, exact: bool = False, objects: int = 0) -> Usage:
    """`root` itself is corral's and counts only for the children it has reaped.

    `objects` are the bytes of its System V objects, attached or not.
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
            continue  # it ended while being looked at
        except OSError as error:
            _check_sight(error)
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
    """Every descendant of `root`, as far as they hold still."""
    found: list[int] = []
    waiting = [root]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(pid: int) -> list[int]:
    """Each thread has its own: a child belongs to the thread that forked it."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError as error:
        _check_sight(error)
    return found


def _check_sight(error: OSError) -> None:
    """Returns for a process that has ended, or that hides; the run ends where nothing is seen."""
    if error.errno in BLIND:
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
        _check_sight(error)
        return 0


def _proportional(pid: int, memfds: Container[Inode], device: int, *, segments: bool) -> int:
    """Shared pages by their share; what is mapped of what is counted as a whole counts there."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            memory = kilobytes(file, (b"Pss_Anon:", b"Pss_Shmem:"))
        with open(f"/proc/{pid}/smaps", "rb") as file:
            elsewhere = counted_elsewhere(file, memfds, device, segments=segments)
        return max(0, memory - elsewhere)
    except OSError:
        return _resident(pid)  # it hides, or has ended: then this is 0


def kilobytes(lines: Iterable[bytes], names: tuple[bytes, ...]) -> int:
    """The sum of the named rows, in bytes."""
    return sum(int(line.split()[1]) for line in lines if line.startswith(names)) * 1024


def counted_elsewhere(
    lines: Iterable[bytes], memfds: Container[Inode], device: int, *, segments: bool = False
) -> int:
    """Of a process's smaps, the bytes of files in memory that are counted as files."""
    found = 0
    mapped = False
    for line in lines:
        first = line[:1]
        if (
            first.isdigit() or b"a" <= first <= b"f"
        ):  # the head of a mapping; its rows are capitalized
            where = _inode(line)
            mapped = where in memfds or where[0] == device or (segments and _is_segment(line))
        elif mapped and line.startswith(b"Pss:"):
            found += int(line.split()[1])
        elif mapped and line.startswith(b"Anonymous:"):
            found -= int(line.split()[1])  # changed in private: no longer the file's
    return max(0, found) * 1024


def _is_segment(head: bytes) -> bool:
    """By the name of the mapping, whole: the end of a memfd's name is whatever its maker likes."""
    return head.split(None, 5)[-1].startswith(b"/SYSV")


def _inode(head: bytes) -> Inode:
    """(device, inode) of a mapping, from `start-end perms offset major:minor inode path`."""
    device, inode = head.split(None, 5)[3:5]
    major, minor = device.split(b":")
    return os.makedev(int(major, 16), int(minor, 16)), int(inode)


def _memfds(pid: int) -> dict[Inode, int]:
    found: dict[Inode, int] = {}
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError as error:
        _check_sight(error)
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
    """(device, bytes). One tmpfs lies behind /tmp, HOME and /dev/shm: any of them tells for all."""
    path = f"/proc/{pid}/root/dev/shm"
    try:
        device, seen = os.stat(path).st_dev, os.statvfs(path)
    except OSError:
        return -1, 0
    if device == _own_device():
        return -1, 0  # no private root: what lies there is the host's
    return device, (seen.f_blocks - seen.f_bfree) * seen.f_frsize


def _own_device() -> int:
    try:
        return os.stat("/dev/shm").st_dev  # noqa: S108 - only to tell them apart
    except OSError:
        return -1
