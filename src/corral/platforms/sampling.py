"""Limits held by looking: for hosts that offer nothing better, and only when such a limit is asked
for.

Memory, total CPU time and the number of tasks are compared with their limits at every look; a share
of the CPU is held by a duty cycle that stops the whole tree for as long as it has run ahead of its
share.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, Protocol

    from corral.plan.model import Sample

    Hit = Literal["memory", "cpu_time", "pids"]

    class Usage(Protocol):
        @property
        def cpu(self) -> float: ...
        @property
        def memory(self) -> int: ...
        @property
        def tasks(self) -> int: ...


INTERVAL = 0.1
"""Seconds between looks: a hog of 1 GiB/s gets a tenth of that beyond its limit."""
DUTY_INTERVAL = 0.02
SLACK = DUTY_INTERVAL
"""Seconds of CPU that may be saved up for a burst: no more than one look may miss."""


class Sampler:
    def __init__(self, asked: Sample) -> None:
        self.asked = asked
        self.peak = 0
        self.tasks = 0
        self.next = time.monotonic()
        self.stopped_until: float | None = None
        self._seen = (time.monotonic(), 0.0)
        self._credit = SLACK

    def look(self, usage: Usage) -> Hit | None:
        """The limit that is broken, if one is."""
        self.peak = max(self.peak, usage.memory)
        self.tasks = max(self.tasks, usage.tasks)
        interval = INTERVAL if self.asked.cpu is None else DUTY_INTERVAL
        self.next = time.monotonic() + interval
        if self.asked.memory is not None and usage.memory > self.asked.memory:
            return "memory"
        if self.asked.cpu_time is not None and usage.cpu * 1000 >= self.asked.cpu_time:
            return "cpu_time"
        if self.asked.pids is not None and usage.tasks > self.asked.pids:
            return "pids"
        return None

    def doubts(self, usage: Usage) -> bool:
        """Over the limit by a cheap look, which counts shared pages once for each process."""
        return self.asked.memory is not None and usage.memory > self.asked.memory

    def rest(self, usage: Usage) -> float:
        """Seconds that the tree has to stand still for its share of the CPU; 0 lets it run."""
        if self.asked.cpu is None:
            return 0.0
        now, share = time.monotonic(), self.asked.cpu / 1000
        then, used = self._seen
        self._seen = (now, usage.cpu)
        earned = self._credit + (now - then) * share - (usage.cpu - used)
        self._credit = min(SLACK, earned)
        return -earned / share if earned < 0 else 0.0
