"""System V objects of the sandbox, counted where no cgroup counts memory.

Segments stay when no process has them attached, and messages and semaphores are the kernel's own
memory: no process's figures show any of them. A list in /proc/sysvipc shows the namespace of the
process that opened it, for as long as it is open. So init opens the lists and hands them out, and
the supervisor reads them.
"""

from __future__ import annotations

import os
import sys

from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.plan.model import Results, Stage
    from corral.platforms.linux.descriptor_channel import DescriptorChannel

LISTS = ("shm", "msg", "sem")
OBJECT = 64
"""Bytes of kernel memory for each message and each semaphore."""
BLOCK = 1 << 16
MAX_LIST_BYTES = 1 << 20
"""About 8000 objects; the kernel's default is 4096 segments. A target decides how many exist."""


@record
class SysvLists:
    """In the supervisor: the open lists, once init has sent them."""

    channel: DescriptorChannel
    fds: list[int]

    def count(self) -> int:
        """Return the bytes of memory behind all objects that exist now."""
        if not self.fds:
            self.fds.extend(self.channel.receive(wait=False))
        if not self.fds:
            return 0
        segments, queues, semaphores = (_sums(fd) for fd in self.fds)
        return (
            sum(segments(name) for name in (b"rss", b"swap"))
            + queues(b"cbytes")
            + OBJECT * (queues(b"qnum") + semaphores(b"nsems"))
        )

    def release(self) -> None:
        self.channel.release()
        while self.fds:
            os.close(self.fds.pop())


@record
class SysvChannel:
    name = "sysv_channel"
    stage: Stage = "supervisor"
    verify = unverified

    def describe(self) -> str:
        return "a socket pair for the lists of System V objects"

    def apply(self, results: Results) -> None:
        from corral.platforms.linux import descriptor_channel

        results.add(SysvLists(channel=descriptor_channel.DescriptorChannel(results), fds=[]))


@record
class OpenSysvLists:
    name = "sysv_lists"
    stage: Stage = "init"
    verify = unverified

    def describe(self) -> str:
        return "System V objects are counted as memory"

    def apply(self, results: Results) -> None:
        opened = [_open(name) for name in LISTS]
        results.get(SysvLists).channel.send(opened)
        for fd in opened:
            os.close(fd)


def _open(name: str) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(f"/proc/sysvipc/{name}", flags)
    except FileNotFoundError:
        return os.open(os.devnull, flags)  # a kernel without System V objects has none to count


def _sums(fd: int) -> Callable[[bytes], int]:
    """Return a function that adds up a column of a list, by its name."""
    parts: list[bytes] = []
    at = 0
    while at < MAX_LIST_BYTES and (part := os.pread(fd, BLOCK, at)):
        parts.append(part)
        at += len(part)
    head, _, rows = b"".join(parts).rpartition(b"\n")[0].partition(b"\n")
    names, cells = head.split(), rows.split()
    return lambda name: sum(map(int, cells[names.index(name) :: len(names)])) if cells else 0
