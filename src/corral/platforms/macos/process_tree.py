"""The whole tree of a target, wherever its processes have gone.

A process may leave its group and its session and be adopted by launchd; who forked it does not
change (`p_puniqueid`). So a tree is everything that was forked by something in the tree, and ids of
processes that have ended are kept, since their children may live on. What is still in the target's
own process group belongs to it as well.

The race that remains: a process that forks and ends before any walk has seen it breaks the chain to
its children, if these have left the group too.
"""

from __future__ import annotations

import os
import time

from corral.abi.signal_numbers import SIGKILL, SIGSTOP
from corral.platforms.macos.process_table import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.platforms.macos.process_table import Row, Table

UNKNOWN = 0
AGREE = 2
"""Walks in a row that must find nobody."""
PAUSE = 0.002
"""Seconds for the kernel to finish with what was killed."""


class Tree:
    """`grouped`: the group of `root` is its own, which holds as long as nobody has reaped it.

    A `unique` of 0 is that of a process which had ended before it was looked at. Nothing descends
    from 0: it is also what a table says of parents that nobody knows.
    """

    def __init__(self, table: Table, root: int, unique: int, *, grouped: bool) -> None:
        self._table = table
        self._root = root
        self._grouped = grouped
        self._known = {unique} - {UNKNOWN}
        # Whatever a table says, these are never a target's.
        self._never = frozenset((0, 1, os.getpid(), os.getppid()))
        self._followed: set[int] = set()
        self._beyond: set[int] = set()

    def walk(self) -> list[Row]:
        """Everybody in the tree who lives; who was not followed yet is from now on."""
        rows = [row for row in self._table.rows() if row.pid not in self._never and row.unique]
        group = frozenset(self._table.group(self._root) if self._grouped else ())
        found: dict[int, Row] = {}
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
        """Stop everybody, so that nothing forks behind the walker's back; kill; look again."""
        quiet = 0
        while quiet < AGREE:
            living = self._stopped()
            quiet = 0 if living else quiet + 1
            for row in living:
                self._send(row, SIGKILL)
            if living:
                time.sleep(PAUSE)

    def measure(self, *, besides: int = 0) -> Usage:
        seen = [self._table.use(row.pid) for row in self.walk() if row.pid != besides]
        return Usage(
            cpu=sum(item.cpu for item in seen),
            memory=sum(item.memory for item in seen),
            tasks=sum(item.tasks for item in seen),
        )

    def _stopped(self) -> list[Row]:
        """Who lives, once two walks agree on it and all of them stand still."""
        stopped: set[int] = set()
        while True:
            living = [row for row in self.walk() if row.unique not in self._beyond]
            moving = [row for row in living if row.unique not in stopped]
            if not moving:
                return living
            for row in moving:
                stopped.add(row.unique)
                self._send(row, SIGSTOP)

    def _send(self, row: Row, number: int) -> None:
        if self._table.unique(row.pid) != row.unique:
            return  # the number is somebody else's by now
        try:
            os.kill(row.pid, number)
        except PermissionError:
            self._beyond.add(row.unique)  # it runs a program of another user's
        except ProcessLookupError:
            pass
