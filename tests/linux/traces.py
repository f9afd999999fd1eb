"""Find what is left of a run: mounts, files, and processes that have a unique argument.

Every process of a sandbox starts as a fork of corral, so its command line is corral's and contains
the argument. The target gets the argument as well.
"""

from __future__ import annotations

import os
import pathlib
import re
import select
import time
import uuid

PATIENCE = 60.0
"""Seconds until a test gives up waiting for a process to end. Only failing tests wait this long."""


class Traces:
    """The state of the host before a run. `left` returns everything that has been added since."""

    def __init__(self, *places: pathlib.Path) -> None:
        self.argument = f"trace-{uuid.uuid4().hex}"
        self._places = places
        self._mounts = mounts()
        self._files = self._listing()

    def left(self) -> dict[str, object]:
        found = {
            "processes": processes(self.argument),
            "mounts": sorted(mounts() - self._mounts),
            "files": sorted(self._listing() - self._files),
        }
        return {name: what for name, what in found.items() if what}

    def left_in_the_end(self) -> dict[str, object]:
        """Wait until the run's processes have ended, and return what is left over."""
        wait_until_gone(self.argument)
        return self.left()

    def _listing(self) -> set[str]:
        found = set().union(*(map(str, place.rglob("*")) for place in self._places))
        return {path for path in found if not REMEMBERED.fullmatch(path)}


REMEMBERED = re.compile(
    r".*/\.local(/state(/corral(/granted-paths|/denials(/.*)?)?)?)?|.*/\.cache(/corral(/runs|/(filters|findings|searched)(/.*)?)?)?"
)
"""Files that corral keeps on purpose: the real paths of grants, denials, findings, filters and searched directories."""

STAGED = re.compile(r"/tmp(/(usr|etc|proc|dev|var|tmp|root|home|bin|sbin|lib\w*)(/.*)?)?")
"""Mounts in which a sandbox assembles its root. Other mounts are ignored, because other processes on
this machine may make them."""


def mounts() -> set[str]:
    text = pathlib.Path("/proc/self/mountinfo").read_text()
    return {where for line in text.splitlines() if STAGED.fullmatch(where := line.split(" ")[4])}


def processes(argument: str) -> list[int]:
    """Return the pids of the processes with `argument` in their command line. Zombies are left out,
    because their command line is empty.
    """
    wanted = argument.encode()
    return [
        int(name) for name in os.listdir("/proc") if name.isdigit() and wanted in _cmdline(name)
    ]


def _cmdline(pid: str) -> bytes:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # the process has just ended


def wait_until_gone(argument: str) -> None:
    """Wait until no process has `argument` in its command line. If a process does not end in time,
    fail and show its command line.
    """
    deadline = time.monotonic() + PATIENCE
    while found := processes(argument) or processes(argument):
        for pid in found:
            assert ended(pid, deadline - time.monotonic()), f"{pid} lives: {_cmdline(str(pid))!r}"


def ended(pid: int, seconds: float = PATIENCE) -> bool:
    """Wait until a process ends, and return whether it has ended in time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(readable(fd, seconds))
    finally:
        os.close(fd)


def readable(fd: int, seconds: float = PATIENCE) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0, int(seconds * 1000))))


def children(pid: int) -> list[int]:
    try:
        return [
            int(child)
            for task in os.listdir(f"/proc/{pid}/task")
            for child in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        ]
    except OSError:
        return []
