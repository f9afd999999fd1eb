"""Count the memory of the sandbox's System V objects, on hosts where no cgroup counts it.

These objects are shared memory segments, message queues and semaphores. The kernel keeps them even
if no process uses them, so their memory is missing from the memory of the processes. A file in
/proc/sysvipc lists the objects of the IPC namespace in which the file was opened. So init, which is
in the sandbox's namespace, opens the files, and the supervisor reads them.
"""

from __future__ import annotations

import errno
import os
import sys

from corral.platforms.linux.descriptor_channel import DescriptorChannel
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.plan.model import Results, Stage

LISTS = ("shm", "msg", "sem")
OBJECT = 64
"""The number of bytes of kernel memory that corral counts for each message and each semaphore."""
BLOCK = 1 << 16
MAX_LIST_BYTES = 1 << 18
"""The maximum length of a list that corral reads, which is enough for a thousand objects. A longer
list is an error, because the target decides how many objects exist, and every measurement reads the
whole list.
"""


@record
class SysvLists:
    """The files in /proc/sysvipc, opened by init.

    `fds` is empty until the supervisor has received the files over `channel`.
    """

    channel: DescriptorChannel
    fds: list[int]

    def count(self) -> int:
        """Return the bytes that all System V objects use, or 0 until init has sent the files."""
        if not self.fds:
            self.fds.extend(self.channel.take("sysv_lists"))
        if not self.fds:
            return 0
        segments, queues, semaphores = (_sums(fd) for fd in self.fds)
        return (
            sum(segments(name) for name in (b"rss", b"swap"))
            + queues(b"cbytes")
            + OBJECT * (queues(b"qnum") + semaphores(b"nsems"))
        )

    def release(self) -> None:
        while self.fds:
            os.close(self.fds.pop())


@record
class OpenSysvLists:
    name = "sysv_lists"
    stage: Stage = "init"
    verify = unverified

    def describe(self) -> str:
        return "System V objects are counted as memory"

    def apply(self, results: Results) -> None:
        opened = [_open(name) for name in LISTS]
        results.get(DescriptorChannel).send("sysv_lists", opened)
        for fd in opened:
            os.close(fd)


def _open(name: str) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(f"/proc/sysvipc/{name}", flags)
    except FileNotFoundError:
        return os.open(os.devnull, flags)  # this kernel does not support System V objects


def _sums(fd: int) -> Callable[[bytes], int]:
    """Read one of the files in /proc/sysvipc, which contains a table.

    Return a function that adds up the column with a given name.
    """
    parts: list[bytes] = []
    at = 0
    while at < MAX_LIST_BYTES and (part := os.pread(fd, BLOCK, at)):
        parts.append(part)
        at += len(part)
    if at >= MAX_LIST_BYTES:
        raise OSError(errno.E2BIG, "too many System V objects")
    head, _, rows = b"".join(parts).rpartition(b"\n")[0].partition(b"\n")
    names, cells = head.split(), rows.split()
    return lambda name: sum(map(int, cells[names.index(name) :: len(names)])) if cells else 0
