"""List the files in a target's private home, which are discarded at the end of the run.

All of the target's processes have ended by then, so the files no longer change. But the target
chose their names, so directories are opened without following symlinks, and the number of entries
is limited.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.denials.records import Discarded

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

MAX_ENTRIES = 2000
MAX_DEPTH = 32
MAX_ROWS = 100
CACHES = frozenset((".cache", ".npm", ".node-gyp", ".nv", ".pki"))
"""Directories in the home that are not listed, because programs can recreate their contents."""
DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


def find(home: int) -> tuple[tuple[Discarded, ...], bool]:
    """Return the files below an open directory, and whether the list is complete. Leave out the
    directories in CACHES.
    """
    walk = _Walk()
    walk.enter(home, "~", 0)
    return tuple(walk.found), walk.whole


class _Walk:
    def __init__(self) -> None:
        self.found: list[Discarded] = []
        self.whole = True
        self._left = MAX_ENTRIES

    def enter(self, directory: int, path: str, depth: int) -> None:
        with os.scandir(directory) as entries:
            for entry in entries:
                self._left -= 1
                if self._left < 0:
                    self.whole = False
                    return
                if depth or entry.name not in CACHES:
                    self._visit(directory, entry.name, f"{path}/{entry.name}", depth)

    def _visit(self, directory: int, name: str, path: str, depth: int) -> None:
        seen = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISREG(seen.st_mode):
            self._add(Discarded(path=path, bytes=seen.st_size))
        if not stat.S_ISDIR(seen.st_mode):
            return
        try:
            inner = os.open(name, DIRECTORY, dir_fd=directory)
        except OSError:
            self.whole = False  # the target has made the directory unreadable
            return
        try:
            if depth < MAX_DEPTH:
                self.enter(inner, path, depth + 1)
            else:
                self.whole = False
        finally:
            os.close(inner)

    def _add(self, row: Discarded) -> None:
        if len(self.found) < MAX_ROWS:
            self.found.append(row)
        else:
            self.whole = False
