"""The whole tree of a target, wherever its processes have gone.

A process may leave its group and its session and be adopted by launchd, but the id of the process
that forked it does not change (`p_puniqueid`). So a tree is every process that was forked by one of
the tree. Ids of processes that have ended are kept, because their children may live on. Processes
in the target's own process group belong to the tree as well.

One race remains: a process that forks and ends before any walk has seen it breaks the chain to its
children, if these have left the group too.
"""

from __future__ import annotations

import os
import sys
import time

from corral.abi.signal_numbers import SIGKILL, SIGSTOP
from corral.platforms.contract import Usage

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.platforms.macos.process_table import Process, ProcessTable

UNKNOWN = 0
EMPTY_WALKS = 2
"""Walks in a row that must find no process before the tree counts as dead."""
PAUSE_SECONDS = 0.002
"""For the kernel to finish with the processes that were killed."""


class Tree:
    """`grouped`: the group of `root` is the tree's own, which is true until `root` is reaped.

    A `unique` of 0 means that `root` had ended before its id was read. Nothing descends from 0,
    because a table also reports 0 for unknown parents.
    """

    def __init__(self, table: ProcessTable, root: int, unique: int, *, grouped: bool) -> None:
        self._table = table
        self._root = root
        self._grouped = grouped
        self._known = {unique} - {UNKNOWN}
        # Whatever a table says, these never belong to a target.
        self._excluded = frozenset((0, 1, os.getpid(), os.getppid()))
        self._followed: set[int] = set()
        self._not_permitted: set[int] = set()

    def walk(self) -> list[Process]:
        """Return the living processes of the tree, and follow the forks of the new ones."""
        rows = [
            row for row in self._table.processes() if row.pid not in self._excluded and row.unique
        ]
        group = frozenset(self._table.group(self._root) if self._grouped else ())
        found: dict[int, Process] = {}
        grew = True
        while grew:
            fresh = [
                row
                for row in rows
                if row.unique not in found
                and (row.unique in self._known or row.parent in self._known or row.pid in group)
            ]
            grew = bool(fresh)
            found.update({row.unique: row for row in fresh})
            self._known.update(row.unique for row in fresh)
        for row in found.values():
            if row.unique not in self._followed:
                self._followed.add(row.unique)
                self._table.follow(row.pid)
        return list(found.values())

    def signal(self, number: int) -> None:
        for row in self.walk():
            self._send(row, number)

    def kill(self) -> None:
        """Stop every process, so that none forks during the walk; kill them; walk again."""
        empty = 0
        while empty < EMPTY_WALKS:
            living = self._stop_all()
            empty = 0 if living else empty + 1
            for row in living:
                self._send(row, SIGKILL)
            if living:
                time.sleep(PAUSE_SECONDS)

    def measure(self, *, excluded: int = 0) -> Usage:
        """Add up what the tree uses, without the process `excluded`."""
        used = [self._table.usage(row.pid) for row in self.walk() if row.pid != excluded]
        return Usage(
            cpu=sum(item.cpu for item in used),
            memory=sum(item.memory for item in used),
            tasks=sum(item.tasks for item in used),
        )

    def _stop_all(self) -> list[Process]:
        """Return the living processes, once a walk finds only ones that were stopped."""
        stopped: set[int] = set()
        while True:
            living = [row for row in self.walk() if row.unique not in self._not_permitted]
            moving = [row for row in living if row.unique not in stopped]
            if not moving:
                return living
            for row in moving:
                stopped.add(row.unique)
                self._send(row, SIGSTOP)

    def _send(self, row: Process, number: int) -> None:
        if self._table.unique_id(row.pid) != row.unique:
            return  # the pid belongs to another process by now
        try:
            os.kill(row.pid, number)
        except PermissionError:
            self._not_permitted.add(row.unique)  # it runs a program of another user
        except ProcessLookupError:
            pass
