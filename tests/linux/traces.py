"""What a run could leave behind: processes that carry a unique argument, mounts, files.

Every process of a sandbox starts as a fork of corral, so the argument is in its command line from its
first instant on, and in the target's because it was given to it.
"""

from __future__ import annotations

import os
import pathlib
import re
import select
import time
import uuid

PATIENCE = 60.0
"""Seconds after which something that has not ended never will: only failing tests wait this long."""


class Traces:
    """The state of the host before a run; `left` is what came and did not go."""

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
        """After a kill -9 nobody waits for the tree but us."""
        wait_until_gone(self.argument)
        return self.left()

    def _listing(self) -> set[str]:
        found = set().union(*(map(str, place.rglob("*")) for place in self._places))
        return {path for path in found if not REMEMBERED.fullmatch(path)}


REMEMBERED = re.compile(r".*/\.local(/state(/corral(/granted-paths)?)?)?")
"""Where granted paths led, which corral remembers on purpose."""

STAGED = re.compile(r"/tmp(/(usr|etc|proc|dev|var|tmp|root|home|bin|sbin|lib\w*)(/.*)?)?")
"""Where a sandbox assembles its root. Other mounts may come and go on a machine that others use too."""


def mounts() -> set[str]:
    text = pathlib.Path("/proc/self/mountinfo").read_text()
    return {where for line in text.splitlines() if STAGED.fullmatch(where := line.split(" ")[4])}


def processes(argument: str) -> list[int]:
    """Living processes with `argument` in their command line; a zombie has none."""
    wanted = argument.encode()
    return [
        int(name) for name in os.listdir("/proc") if name.isdigit() and wanted in _cmdline(name)
    ]


def _cmdline(pid: str) -> bytes:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it ended between the listing and now


def wait_until_gone(argument: str) -> None:
    """Returns once no process carries `argument`, or fails naming those that do."""
    deadline = time.monotonic() + PATIENCE
    while found := processes(argument) or processes(argument):
        for pid in found:
            assert ended(pid, deadline - time.monotonic()), f"{pid} lives: {_cmdline(str(pid))!r}"


def ended(pid: int, seconds: float = PATIENCE) -> bool:
    """Waits on a pidfd."""
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
