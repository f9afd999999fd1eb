"""Use a cgroup to measure the CPU time of this process and of all processes that it starts.

A process can ask `wait4` for the CPU time of its children, but this would leave out the processes
that a sandbox starts and does not wait for. Only cgroup v2 is used, because it counts CPU time in
every group, even without a controller.
"""

from __future__ import annotations

import os
import time
from typing import Self

REMOVALS, REMOVAL_SECONDS = 100, 0.02


class CpuTime:
    """Put this process into a new cgroup for the duration of a `with` block.

    If this user may not create a cgroup, `read` returns None.
    """

    def __init__(self) -> None:
        self._before = self._group = ""

    def __enter__(self) -> Self:
        try:
            self._before = _find_group()
            group = os.path.join(self._before, f"corral-bench-{os.getpid()}")
            os.mkdir(group)
            self._group = group
            _move(group)
        except OSError:
            self.__exit__()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the group, and remove it once the processes in it have ended."""
        if self._group:
            _move(self._before)
            for _ in range(REMOVALS):
                try:
                    os.rmdir(self._group)
                    break
                except OSError:
                    time.sleep(REMOVAL_SECONDS)
        self._group = ""

    def read(self) -> float | None:
        """Return the CPU time of the group in milliseconds, or None if there is no group."""
        if not self._group:
            return None
        with open(os.path.join(self._group, "cpu.stat"), encoding="ascii") as file:
            return int(file.readline().split()[1]) / 1000


def _find_group() -> str:
    """Return the directory of this process's cgroup."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        mounts = [line.split() for line in file if " - cgroup2 " in line]
    with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
        own = [line[3:].strip() for line in file if line.startswith("0::")]
    if not mounts or not own:
        raise FileNotFoundError("cgroup2")
    return mounts[0][4] + own[0].rstrip("/")


def _move(group: str) -> None:
    with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
        file.write(str(os.getpid()))
