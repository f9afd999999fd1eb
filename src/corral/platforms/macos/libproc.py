"""The process table of macOS, by libproc; forks are told by a kernel queue.

A process that forks and ends before anybody has looked is never seen, and its children cannot be
linked to the tree: that race remains. Being told of forks makes it as narrow as it can be.
"""

from __future__ import annotations

import select
import sys

from corral.abi import darwin_proc as abi
from corral.platforms.macos.process_table import Row, Usage

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers


class Libproc:
    def __init__(self) -> None:
        self._queue: select.kqueue | None = None
        self._tick = 0.0

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for pid in abi.all_pids():
            try:
                unique, parent = abi.unique_ids(pid)
            except OSError:
                continue  # it has ended
            found.append(Row(pid=pid, unique=unique, parent=parent))
        return found

    def unique(self, pid: int) -> int:
        try:
            return abi.unique_ids(pid)[0]
        except OSError:
            return 0

    def group(self, leader: int) -> list[int]:
        return abi.group_pids(leader)

    def use(self, pid: int) -> Usage:
        self._tick = self._tick or abi.seconds_per_tick()
        try:
            ticks, memory = abi.rusage(pid)
            return Usage(cpu=ticks * self._tick, memory=memory, tasks=abi.threads(pid))
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
        """Made where it is used: a fork does not inherit a kernel queue."""
        if self._queue is None:
            self._queue = select.kqueue()
        return self._queue
