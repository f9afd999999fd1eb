"""Measure a process tree's memory, CPU time and tasks from /proc, where no cgroup counts them.

Init, or the subreaper, is the root of the tree and adopts every orphan, so all processes are below
it. When a process ends, its CPU time is added to its parent's.

Memory is the sum of four parts:

- the anonymous and shared memory of every process, including swapped memory, huge pages and page
  tables
- the private space, which is the target's own tmpfs with /tmp, HOME and /dev/shm
- files in memory: open memfds and, if corral runs as root, also mapped memfds and shared anonymous
  mappings
- System V objects, whose size the caller passes (`mechanisms/sysv_ipc.py`)

A quick measurement is an upper bound, because a shared page counts once for each process. An exact
measurement divides the size of a shared page by the number of processes that use the page. But
corral reads one process after the other. The sum is too high if a process that shares pages ends in
the meantime, and too low if one starts. So the `Usage` of an exact measurement has two more fields.
`steady` is false if a process has started during the measurement. `certain` is a lower bound: the
memory of the largest process, without memory that it may share with processes outside the tree.

A target chooses how much there is to read, so a `Budget` limits the work. When the budget is used
up, no more descriptors and mappings are read. A file in memory may then be missed or counted twice.
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
"""Positions of utime, stime, cutime and cstime in /proc/PID/stat, counted from the field after the
name.
"""
FLAGS, PF_EXITING = 6, 4
THREADS = 17
UNREADABLE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Errors which mean that corral itself, or the host, has too many open files or too little memory.

They say nothing about the measured process. If its usage were then counted as zero, no limit would
be enforced.
"""
IN_MEMORY = (b"/memfd:", b"/dev/zero (deleted)")
"""The kernel's names for the mapping of a memfd, and for a shared mapping without a file."""
OF_PROCESS = (b"VmPTE:", b"HugetlbPages:")
"""Rows of /proc/PID/status that are missing from smaps_rollup. They must be counted, because a
target can use memory for page tables alone, by reading one byte in every 2 MiB of a mapping.
"""
RESIDENT = (b"RssAnon:", b"RssShmem:", b"VmSwap:", *OF_PROCESS)
OWN = (b"RssAnon:", b"VmSwap:", *OF_PROCESS)
"""Rows of /proc/PID/status for memory that a process can share only with processes of its own tree.
"""
PROPORTIONAL = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
MAX_DESCRIPTORS = 16384
MAX_MAP_BYTES = 16 << 20
KCMP_FILES = 2
MAX_READS_OF_ROOT = 64
"""The maximum number of times that one walk reads the root's list of children. Without this bound a
walk might never end: a target can keep starting and ending processes, and each of them adds an
orphan to the list.
"""


class Budget:
    """The number of descriptors and the bytes of mapping lists that may still be read."""

    def __init__(self) -> None:
        self.descriptors = MAX_DESCRIPTORS
        self.map_bytes = MAX_MAP_BYTES

    def lines(self, lines: Iterable[bytes]) -> Iterator[bytes]:
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
    """Measure the descendants of `root`, which is one of corral's processes.

    The usage of `root` itself does not count, but the CPU time of its reaped children does.
    `objects` is the size of the tree's System V objects in bytes. When `interrupted` returns True,
    stop, and return the memory that was found until then.
    """
    pids, ticks, tasks = _processes(root)
    memory = objects
    budget = Budget()
    files: dict[Inode, int] = {}
    measured: list[int] = []
    for pid in pids:
        if interrupted():
            break
        files.update(_open_memfds(pid, budget))
        files.update(_mapped_files(pid, budget))
        measured.append(pid)
    device, space = _private_space(measured)
    memory += space + sum(files.values())
    certain = 0
    for pid in measured:
        if interrupted():
            break
        if exact:
            memory += _proportional(pid, files, device, budget, segments=objects > 0)
            certain = max(certain, _resident(pid, OWN))
        else:
            memory += _resident(pid)
    cpu = ticks / os.sysconf("SC_CLK_TCK")
    steady = not exact or interrupted() or set(tree(root)) <= set(pids)
    return Usage(cpu=cpu, memory=memory, tasks=tasks, certain=certain, steady=steady)


def _processes(root: int) -> tuple[list[int], int, int]:
    """Return the living descendants of `root`, the CPU time of the tree in clock ticks, and the
    number of its threads.
    """
    ticks = tasks = 0
    pids: list[int] = []
    for pid in (root, *tree(root)):
        try:
            stat = _fields(f"/proc/{pid}/stat")
        except OSError as error:
            _check_readable(error)
            continue  # the process has ended in the meantime
        used = list(map(int, stat[CPU_FIELDS]))
        if pid == root:
            ticks += sum(used[2:])
            continue
        ticks += sum(used)
        tasks += int(stat[THREADS])
        pids.append(pid)
    return pids, ticks, tasks


def count_tasks(root: int) -> int:
    return _processes(root)[2]


def tree(root: int) -> list[int]:
    """Return every descendant of `root`. A process that starts during the walk may be missed.

    If a process ends during the walk, its children become children of `root`. So read the children
    of `root` again until there are no new ones.
    """
    found: dict[int, None] = {}
    for _ in range(MAX_READS_OF_ROOT):
        waiting = [pid for pid in _children(root) if pid not in found]
        if not waiting:
            break
        while waiting:
            pid = waiting.pop()
            found[pid] = None
            waiting += [child for child in _children(pid) if child not in found]
    return list(found)


def _children(pid: int) -> list[int]:
    """Return a process's children. The kernel lists the children of each thread separately.

    When a thread ends, its children move to the list of the process's first living thread. A first
    pass through the threads may miss children that move meanwhile, so a second pass looks for them.
    The second pass stops at the first living thread, because that thread's list contains these
    children. If it did not stop there, a target whose threads keep ending could make one walk last
    for minutes.
    """
    threads = _threads(pid)
    found = _lists_of_children(pid, threads)
    if len(threads) > 1 or not _lives(pid, pid):
        for thread in _threads(pid):
            found |= _lists_of_children(pid, (thread,))
            if _lives(pid, thread):
                break
    return list(found)


def _lists_of_children(pid: int, threads: Iterable[int]) -> dict[int, None]:
    found: dict[int, None] = {}
    for thread in threads:
        try:
            listed = abi.read_file(f"/proc/{pid}/task/{thread}/children")
        except OSError as error:
            _check_readable(error)
            continue
        found |= dict.fromkeys(map(int, listed.split()))
    return found


def _lives(pid: int, thread: int) -> bool:
    """Return whether a thread has not yet begun to exit.

    Check the thread's flags, because a process's main thread stays in the list of threads after its
    exit.
    """
    try:
        fields = _fields(f"/proc/{pid}/task/{thread}/stat")
    except OSError as error:
        _check_readable(error)
        return False
    return len(fields) > FLAGS and not int(fields[FLAGS]) & PF_EXITING


def _check_readable(error: OSError) -> None:
    """Raise the error if its cause is in corral or the host, such as too many open files.

    Ignore the error if its cause is the measured process, which has ended or hides its data.
    """
    if error.errno in UNREADABLE:
        raise error


def _fields(path: str) -> list[bytes]:
    """Return the fields of a `stat` file that follow the process's name.

    Search for the end of the name from the right, because the name may contain spaces and brackets.
    """
    return abi.read_file(path).rpartition(b") ")[2].split()


def _threads(pid: int) -> list[int]:
    """Return the ids of a process's threads. The main thread is first."""
    try:
        return sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=lambda thread: thread != pid)
    except OSError as error:
        _check_readable(error)
        return []


def _resident(pid: int, rows: tuple[bytes, ...] = RESIDENT) -> int:
    """Add up the rows of a process's `status` that start with one of `rows`. Return bytes.

    Every thread's `status` has these rows until the thread ends. The main thread may end before the
    others, so read the first thread that still has them.
    """
    for thread in _threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                lines = [line for line in file if line.startswith(RESIDENT)]
        except OSError as error:
            _check_readable(error)
            continue
        if lines:
            return kilobytes(lines, rows)
    return 0


def _proportional(
    pid: int, files: Container[Inode], device: int, budget: Budget, *, segments: bool
) -> int:
    """Return a process's memory in bytes, with each shared page divided by the number of its users.

    `measure` counts a part of this memory in another way, for example files in memory with their
    whole size. So subtract this part (`counted_elsewhere`). If the process's smaps cannot be read,
    return its resident memory.
    """
    for thread in _threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/smaps_rollup", "rb") as file:
                memory = kilobytes(file, PROPORTIONAL)
            with open(f"/proc/{pid}/task/{thread}/smaps", "rb") as file:
                lines = budget.lines(file)
                elsewhere = counted_elsewhere(lines, files, device, segments=segments)
        except OSError:
            continue  # the thread has ended, or the process does not let corral read its smaps
        return max(0, memory - elsewhere) + _resident(pid, OF_PROCESS)
    return _resident(pid)


def kilobytes(lines: Iterable[bytes], names: tuple[bytes, ...]) -> int:
    """Add up the numbers in the lines that start with one of `names`.

    The numbers are in kilobytes, and the sum is in bytes.
    """
    return sum(int(line.split()[1]) for line in lines if line.startswith(names)) * 1024


def counted_elsewhere(
    lines: Iterable[bytes], memfds: Container[Inode], device: int, *, segments: bool = False
) -> int:
    """Return how many bytes in a process's smaps `measure` has already counted in another way.

    These are files in memory, files of the private space, and System V segments if `segments` is
    true.
    """
    found = 0
    mapped = False
    for line in lines:
        first = line[:1]
        # The first line of a mapping begins with a hexadecimal address. The other lines begin with
        # a capital letter.
        if first.isdigit() or b"a" <= first <= b"f":
            where = _inode(line)
            mapped = where in memfds or where[0] == device or (segments and _is_segment(line))
        elif mapped and line.startswith((b"Pss:", b"SwapPss:")):
            found += int(line.split()[1])
        elif mapped and line.startswith(b"Anonymous:"):
            # Pages that the process has changed only for itself are not part of the file, so they
            # have not been counted yet.
            found -= int(line.split()[1])
    return max(0, found) * 1024


def _is_segment(head: bytes) -> bool:
    """Return whether a mapping is a System V segment.

    Check only the start of the mapping's name, because a target can give a memfd a name that
    contains "/SYSV".
    """
    return head.split(None, 5)[-1].startswith(b"/SYSV")


def _inode(head: bytes) -> Inode:
    """Return (device, inode) from a line `start-end perms offset major:minor inode path`."""
    device, inode = head.split(None, 5)[3:5]
    major, minor = device.split(b":")
    return os.makedev(int(major, 16), int(minor, 16)), int(inode)


def _open_memfds(pid: int, budget: Budget) -> dict[Inode, int]:
    """Return the memfds that the threads of a process have open.

    Look at each thread, because a thread can have its own descriptors.
    """
    found: dict[Inode, int] = {}
    first = 0
    for thread in _threads(pid):
        if budget.descriptors <= 0:
            break  # a target may have so many threads with own descriptors that reading all is slow
        if first and _shares_files(thread, first):
            continue
        first = first or thread
        directory = f"/proc/{pid}/task/{thread}/fd"
        try:
            names = os.listdir(directory)
        except OSError as error:
            _check_readable(error)
            continue
        for name in names[: budget.descriptors]:
            found.update(_memfd(f"{directory}/{name}"))
        budget.descriptors -= len(names)
    return found


def _shares_files(thread: int, other: int) -> bool:
    """Return whether two threads share their descriptors, or False if the kernel cannot tell."""
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
        pass  # this descriptor was closed in the meantime
    return {}


def _mapped_files(pid: int, budget: Budget) -> dict[Inode, int]:
    """Return the sizes of the files in memory that a process has mapped.

    Return {} if corral is not root, because only root may open the mapped files.
    """
    found: dict[Inode, int] = {}
    if os.geteuid():
        return found
    for thread in _threads(pid):
        listed = False
        try:
            with open(f"/proc/{pid}/task/{thread}/maps", "rb") as file:
                for line in budget.lines(file):
                    listed = True
                    if line.split(None, 5)[-1].startswith(IN_MEMORY) and _inode(line) not in found:
                        span = line.split(None, 1)[0].decode()
                        seen = os.stat(f"/proc/{thread}/map_files/{span}")
                        found[seen.st_dev, seen.st_ino] = seen.st_blocks * 512
        except OSError as error:
            _check_readable(error)
            continue  # the mapping is gone, or root lacks the capability to read map_files
        if listed:
            break  # all threads have the same mappings, except that an exited thread lists none
    return found


def _private_space(pids: list[int]) -> tuple[int, int]:
    """Return (device, used bytes) of the target's own tmpfs, which contains /tmp, HOME and
    /dev/shm.

    Return (-1, 0) if the target has no tmpfs of its own.
    """
    for thread in (thread for pid in pids for thread in _threads(pid)):
        path = f"/proc/{thread}/root/dev/shm"
        try:
            device, seen = os.stat(path).st_dev, os.statvfs(path)
        except OSError:
            continue
        if device == _own_device():
            break  # without a private root every thread sees the host's /dev/shm
        return device, (seen.f_blocks - seen.f_bfree) * seen.f_frsize
    return -1, 0


def _own_device() -> int:
    try:
        return os.stat("/dev/shm").st_dev  # noqa: S108 - only compared
    except OSError:
        return -1
