"""Read the host's processes from libproc, and their forks from a kqueue."""

from __future__ import annotations

import os
import select
import sys

from corral.abi import darwin_proc, darwin_sandbox
from corral.platforms.contract import Usage
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers


@record
class Process:
    """A process on the host.

    `unique` is an id that no other process gets until the next boot, unlike a pid. `parent` is the
    unique id of the process that forked this one.
    """

    pid: int
    unique: int
    parent: int


class ProcessTable:
    """Reads the host's live processes.

    The descriptor `fileno()` becomes readable when a process that `follow` was called for has
    forked. Only one process may use a table: the process that made it, or a child of that process.
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
                continue  # the process has ended
            found.append(Process(pid=pid, unique=unique, parent=parent))
        return found

    def unique_id(self, pid: int) -> int:
        """Return the unique id of a process, or 0 if it has ended."""
        try:
            return darwin_proc.unique_ids(pid)[0]
        except OSError:
            return 0

    def has_marker(self, pid: int, marker: str) -> bool:
        """Return whether a process's profile contains this marker.

        The marker is a service name that is different in each run, and the profile of the run
        allows its processes to look it up. The profile of another program may allow every name. So
        also check that the process may not look up a different name.
        """
        try:
            return (
                darwin_sandbox.confined(pid)
                and darwin_sandbox.may_look_up(pid, marker)
                and not darwin_sandbox.may_look_up(pid, f"{marker}.other")
            )
        except OSError:
            return False  # this version of macOS has no such function

    def responsible(self, pid: int) -> int:
        """Return the pid of the responsible process, or 0 if macOS does not report it."""
        try:
            return darwin_proc.responsible_pid(pid)
        except OSError:
            return 0

    def count_own(self) -> int:
        return darwin_proc.count_user(os.getuid())

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
            pass  # the process has ended

    def fileno(self) -> int:
        return self._forks().fileno()

    def drain(self) -> None:
        while self._forks().control(None, 64, 0):
            pass

    def _forks(self) -> select.kqueue:
        """Return the kqueue that reports forks.

        Open it at the first use, because a kqueue that is opened before a fork does not exist in
        the child process.
        """
        if self._queue is None:
            self._queue = select.kqueue()
        return self._queue
