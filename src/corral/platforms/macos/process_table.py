"""The host's processes, read from libproc; a kernel queue reports forks.

A process that forks and ends before any walk has seen it stays unknown, and its children cannot be
linked to the tree. The reports of forks make that race as narrow as possible.
"""

from __future__ import annotations

import select
import sys

from corral.abi import darwin_proc
from corral.platforms.contract import Usage
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers


@record
class Process:
    """`unique` is never given out twice; `parent` is that of the process that forked this one."""

    pid: int
    unique: int
    parent: int


class ProcessTable:
    """The processes that have not ended.

    `fileno` becomes readable when a followed process has forked. Either the process that made a
    table uses it or a fork of that process, never both.
    """

    def __init__(self) -> None:
        self._queue: select.kqueue | None = None
        self._seconds_per_tick = 0.0

    def processes(self) -> list[Process]:
        found: list[Process] = []
        for pid in darwin_proc.all_pids():
            try:
                unique, parent = darwin_proc.unique_ids(pid)
            except OSError:
                continue  # it has ended
            found.append(Process(pid=pid, unique=unique, parent=parent))
        return found

    def unique_id(self, pid: int) -> int:
        """Return 0 for a process that has ended."""
        try:
            return darwin_proc.unique_ids(pid)[0]
        except OSError:
            return 0

    def group(self, leader: int) -> list[int]:
        return darwin_proc.group_pids(leader)

    def usage(self, pid: int) -> Usage:
        self._seconds_per_tick = self._seconds_per_tick or darwin_proc.seconds_per_tick()
        try:
            ticks, memory = darwin_proc.rusage(pid)
            cpu = ticks * self._seconds_per_tick
            return Usage(cpu=cpu, memory=memory, tasks=darwin_proc.threads(pid))
        except OSError:
            return Usage()

    def follow(self, pid: int) -> None:
        flags = select.KQ_EV_ADD | select.KQ_EV_CLEAR
        event = select.kevent(
            pid, filter=select.KQ_FILTER_PROC, flags=flags, fflags=select.KQ_NOTE_FORK
        )
        try:
            self._forks().control([event], 0, 0)
        except OSError:
            pass  # it has ended

    def fileno(self) -> int:
        return self._forks().fileno()

    def drain(self) -> None:
        while self._forks().control(None, 64, 0):
            pass

    def _forks(self) -> select.kqueue:
        """Make the kernel queue at its first use, because a fork does not inherit one."""
        if self._queue is None:
            self._queue = select.kqueue()
        return self._queue
