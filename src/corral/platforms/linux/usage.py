"""What a tree of processes uses, read from /proc where no cgroup counts.

Init is the root of the tree and inherits every orphan, so all processes are below it. Memory is the
anonymous and shared memory of every process, plus the private space and the files in memory that a
thread has open or, where root may look them up, mapped. That is a cheap upper bound, because shared
pages count once for each process; an exact measurement divides them by their users, as a cgroup
charges them once. CPU time of ended processes is their parents'.

A target chooses how much there is to read, so a `Budget` bounds it. Beyond the budget descriptors
are not looked at, and shared pages that are also counted as files count twice.
"""

from __future__ import annotations

import errno
import os
import sys

from corral.abi import linux as abi
from corral.platforms.contract import Usage

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    Inode = tuple[int, int]

CPU_FIELDS = slice(11, 15)
"""utime, stime, cutime and cstime in /proc/PID/stat, counted behind the name."""
THREADS = 17
UNREADABLE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Errors of this process, not of the tree. To count them as no use would switch every limit off."""
IN_MEMORY = (b"/memfd:", b"/dev/zero (deleted)")
"""How the kernel names a mapping of a memfd, and a shared one of no file."""
MAX_DESCRIPTORS = 16384
MAX_MAP_BYTES = 16 << 20
KCMP_FILES = 2


class Budget:
    """How much one measurement may still read: descriptors, and bytes of lists of mappings."""

    def __init__(self) -> None:
        self.descriptors = MAX_DESCRIPTORS
        self.map_bytes = MAX_MAP_BYTES

    def lines(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield lines while their bytes are within the budget."""
        for line in lines:
            self.map_bytes -= len(line)
            if self.map_bytes < 0:
                return
            yield line


def measure(
    root: int,
    *,
    exact: bool = False,
    objects: int = 0,
    interrupted: Callable[[], bool] = lambda: False,
) -> Usage:
    """Measure the descendants of `root`, which is corral's and counts only for reaped children.

    `objects` are the bytes of the tree's System V objects, attached or not. Memory is what was
    found so far once `interrupted` returns True.
    """
    pids, ticks, tasks = _processes(root)
    memory = objects
    budget = Budget()
    files: dict[Inode, int] = {}
    looked_at: list[int] = []
    for pid in pids:
        if interrupted():
            break
        files.update(_open_memfds(pid, budget))
        files.update(_mapped_files(pid, budget))
        looked_at.append(pid)
    device, space = _private_space(looked_at)
    memory += space + sum(files.values())
    for pid in looked_at:
        if interrupted():
            break
        if exact:
            memory += _proportional(pid, files, device, budget, segments=objects > 0)
        else:
            memory += _resident(pid)
    return Usage(cpu=ticks / os.sysconf("SC_CLK_TCK"), memory=memory, tasks=tasks)


def _processes(root: int) -> tuple[list[int], int, int]:
    """Return the descendants that live, and the CPU ticks and threads of all."""
    ticks = tasks = 0
    pids: list[int] = []
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
    return pids, ticks, tasks


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


def _threads(pid: int) -> list[int]:
    """Return the threads of a process, the first thread first."""
    try:
        return sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=lambda thread: thread != pid)
    except OSError as error:
        _check_readable(error)
        return []


def _resident(pid: int) -> int:
    """Read a thread that has memory: after the first one's exit its own status has none."""
    for thread in _threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                lines = [line for line in file if line.startswith((b"RssAnon:", b"RssShmem:"))]
        except OSError as error:
            _check_readable(error)
            continue
        if lines:
            return kilobytes(lines, (b"Rss",))
    return 0


def _proportional(
    pid: int, files: Container[Inode], device: int, budget: Budget, *, segments: bool
) -> int:
    """Count shared pages by their share, without maps of files that are counted as a whole."""
    for thread in _threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/smaps_rollup", "rb") as file:
                memory = kilobytes(file, (b"Pss_Anon:", b"Pss_Shmem:"))
            with open(f"/proc/{pid}/task/{thread}/smaps", "rb") as file:
                lines = budget.lines(file)
                elsewhere = counted_elsewhere(lines, files, device, segments=segments)
        except OSError:
            continue  # this thread has ended, or the process hides
        return max(0, memory - elsewhere)
    return _resident(pid)


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


def _open_memfds(pid: int, budget: Budget) -> dict[Inode, int]:
    """Return the memfds that any thread has open: a thread may have its own descriptors."""
    found: dict[Inode, int] = {}
    tables: list[int] = []
    for thread in _threads(pid):
        if any(_shares_files(thread, seen) for seen in tables[:1]):
            continue
        tables.append(thread)
        directory = f"/proc/{pid}/task/{thread}/fd"
        try:
            names = os.listdir(directory)
        except OSError as error:
            _check_readable(error)
            continue
        for name in names[: max(0, budget.descriptors)]:
            found.update(_memfd(f"{directory}/{name}"))
        budget.descriptors -= len(names)
    return found


def _shares_files(thread: int, other: int) -> bool:
    """Return whether two threads have the same descriptors; False if the kernel does not say."""
    try:
        return abi.syscall("kcmp", thread, other, KCMP_FILES, 0, 0) == 0
    except OSError:
        return False


def _memfd(path: str) -> dict[Inode, int]:
    try:
        if os.readlink(path).startswith("/memfd:"):
            seen = os.stat(path)
            return {(seen.st_dev, seen.st_ino): seen.st_blocks * 512}
    except OSError:
        pass  # closed meanwhile: the others still count
    return {}


def _mapped_files(pid: int, budget: Budget) -> dict[Inode, int]:
    """Return the files in memory that a process has mapped, touched or not; only root may ask."""
    found: dict[Inode, int] = {}
    if os.geteuid():
        return found
    for thread in _threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/maps", "rb") as file:
                for line in budget.lines(file):
                    if line.split(None, 5)[-1].startswith(IN_MEMORY) and _inode(line) not in found:
                        span = line.split(None, 1)[0].decode()
                        seen = os.stat(f"/proc/{thread}/map_files/{span}")
                        found[seen.st_dev, seen.st_ino] = seen.st_blocks * 512
        except OSError as error:
            _check_readable(error)
            continue  # unmapped meanwhile, or this root may not ask
        if found:
            break
    return found


def _private_space(pids: list[int]) -> tuple[int, int]:
    """Return (device, bytes) of the one tmpfs that is behind /tmp, HOME and /dev/shm."""
    for thread in (thread for pid in pids for thread in _threads(pid)):
        path = f"/proc/{thread}/root/dev/shm"
        try:
            device, seen = os.stat(path).st_dev, os.statvfs(path)
        except OSError:
            continue
        if device != _own_device():  # otherwise there is no private root: this is the host's
            return device, (seen.f_blocks - seen.f_bfree) * seen.f_frsize
    return -1, 0


def _own_device() -> int:
    try:
        return os.stat("/dev/shm").st_dev  # noqa: S108 - only to tell them apart
    except OSError:
        return -1
