"""Find, measure and kill all processes of a target, even if they have left its session.

A process can leave its group and session, and launchd can adopt it. But the unique id of the
process that forked it (`p_puniqueid`) never changes. The tree is therefore the target and all
processes that a process of the tree has forked. Ids of ended processes are remembered, because
their children may still be alive. Processes in the target's own process group belong to the tree
too.

If a process is forked, forks itself and ends, all between two reads of the process table, corral
never sees its id. Its children are then recognized in two other ways. Under Seatbelt, their profile
contains a marker of this run. And their responsible process is the target, unless they have
disclaimed it (`responsibility`).
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
"""How many consecutive reads of the process table must find no process before the tree counts as
ended.
"""
PAUSE_SECONDS = 0.002
"""How long the kernel gets to remove killed processes."""


class Tree:
    """The processes of one target, which each call of `walk` looks for again.

    `grouped` is True if `root` has not been reaped, so that no other process can have its pid. The
    tree then includes all processes in the group of `root`, and all processes whose responsible
    process is `root`.

    `unique` is the unique id of `root` (not its pid), or 0 if `root` ended before the id was read.
    No process counts as a child of 0, because the process table also reports 0 for unknown parents.
    `marker` is the name in the target's Seatbelt profile that identifies its processes.
    """

    def __init__(
        self, table: ProcessTable, root: int, unique: int, *, grouped: bool, marker: str = ""
    ) -> None:
        self._table = table
        self._root = root
        self._grouped = grouped
        self._marker = marker
        self._known = {unique} - {UNKNOWN}
        # The kernel, launchd, this process and its parent never belong to a target, whatever the
        # table reports.
        self._excluded = frozenset((0, 1, os.getpid(), os.getppid()))
        self._followed: set[int] = set()
        self._others: set[int] = set()
        self._not_permitted: set[int] = set()

    def walk(self) -> list[Process]:
        """Return the live processes of the tree. Follow new ones, so that the table reports when
        they fork.
        """
        rows = [
            row for row in self._table.processes() if row.pid not in self._excluded and row.unique
        ]
        group = frozenset(self._table.group(self._root) if self._grouped else ())
        self._known.update(row.unique for row in rows if self._is_recognized(row))
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

    def _is_recognized(self, row: Process) -> bool:
        """Return whether the marker or the responsible process shows that a process belongs to the
        tree.

        Check each process only once, because no process can join the tree later in its life.
        """
        if row.unique in self._known or row.unique in self._others:
            return False
        if self._marker and self._table.has_marker(row.pid, self._marker):
            return True
        if self._grouped and self._table.responsible(row.pid) == self._root:
            return True
        self._others.add(row.unique)
        return False

    def signal(self, number: int) -> None:
        for row in self.walk():
            self._send(row, number)

    def kill(self) -> None:
        """Stop all processes, so that none can fork, then kill them. Repeat until none is left."""
        empty = 0
        while empty < EMPTY_WALKS:
            living = self._stop_all()
            empty = 0 if living else empty + 1
            for row in living:
                self._send(row, SIGKILL)
            if living:
                time.sleep(PAUSE_SECONDS)

    def measure(self, *, excluded: int = 0) -> Usage:
        used = [self._table.usage(row.pid) for row in self.walk() if row.pid != excluded]
        return Usage(
            cpu=sum(item.cpu for item in used),
            memory=sum(item.memory for item in used),
            tasks=sum(item.tasks for item in used),
        )

    def _stop_all(self) -> list[Process]:
        """Stop the processes of the tree until a walk finds only stopped ones, and return these."""
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
            return  # the process has ended, and another process may have its pid
        try:
            os.kill(row.pid, number)
        except PermissionError:
            self._not_permitted.add(row.unique)  # the process runs as another user
        except ProcessLookupError:
            pass
