"""What a tree uses, seen from outside: for hosts where no cgroup counts.

init is the root of the tree and inherits every orphan, so all of it hangs below. Memory is anonymous and
shared memory of every process plus what lies in the private space and in memfds; what is mapped and
lies there counts twice, which errs on the safe side. CPU time of ended processes is their parents'.
"""

from __future__ import annotations

import os
import sys

from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

CPU_FIELDS = slice(11, 15)
"""utime, stime, cutime and cstime in /proc/PID/stat, counted behind the name."""
THREADS = 17


@record
class Usage:
    cpu: float
    memory: int
    tasks: int


def measure(root: int) -> Usage:
    """`root` itself is corral's and counts only for the children it has reaped."""
    tick = os.sysconf("SC_CLK_TCK")
    cpu = sum(_stat(root)[CPU_FIELDS][2:]) / tick
    memory = tasks = 0
    memfds: dict[tuple[int, int], int] = {}
    space = 0
    for pid in tree(root):
        try:
            stat = _stat(pid)
            memory += _resident(pid)
        except (OSError, ValueError, IndexError):
            continue  # it ended while being looked at
        cpu += sum(stat[CPU_FIELDS]) / tick
        tasks += stat[THREADS]
        memfds.update(_memfds(pid))
        space = space or _private_space(pid)
    return Usage(cpu=cpu, memory=memory + space + sum(memfds.values()), tasks=tasks)


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
    except OSError:
        pass
    return found


def _stat(pid: int) -> list[int]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b") ")[2].split()
    return [0, *(int(field) for field in fields[1:40])]


def _resident(pid: int) -> int:
    with open(f"/proc/{pid}/status", "rb") as file:
        rows = [line.split() for line in file if line.startswith((b"RssAnon:", b"RssShmem:"))]
    return sum(int(row[1]) for row in rows) * 1024


def _memfds(pid: int) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            if os.readlink(path).startswith("/memfd:"):
                seen = os.stat(path)
                found[seen.st_dev, seen.st_ino] = seen.st_blocks * 512
    except OSError:
        pass
    return found


def _private_space(pid: int) -> int:
    """One tmpfs lies behind /tmp, HOME and /dev/shm: any of them tells for all."""
    try:
        seen = os.statvfs(f"/proc/{pid}/root/dev/shm")
    except OSError:
        return 0
    return (seen.f_blocks - seen.f_bfree) * seen.f_frsize
