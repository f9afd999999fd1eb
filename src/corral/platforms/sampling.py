"""Enforce limits by sampling, on hosts that offer nothing better and only when a limit is stated.

Each sample compares memory, total CPU time and the number of tasks with their limits. A CPU share
is enforced by a duty cycle, which stops the tree for as long as it has run ahead of its share.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from corral.plan.model import Sample
    from corral.platforms.contract import Usage

    Hit = Literal["memory", "cpu_time", "pids"]


INTERVAL = 0.1
"""Seconds between samples: at 1 GiB/s a target gets a tenth of that beyond its limit."""
DUTY_INTERVAL = 0.02
SLACK = DUTY_INTERVAL
"""Seconds of CPU that may be saved up for a burst: no more than one sample may miss."""


class Sampler:
    def __init__(self, asked: Sample) -> None:
        self.asked = asked
        self.peak = 0
        self.tasks = 0
        self.next = time.monotonic()
        self.stopped_until: float | None = None
        self._seen = (time.monotonic(), 0.0)
        self._credit = SLACK

    def check(self, usage: Usage) -> Hit | None:
        """Return the limit that is exceeded, if one is."""
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

    def needs_exact(self, usage: Usage) -> bool:
        """Return whether a cheap sample, which counts shared pages twice, exceeds the limit."""
        return self.asked.memory is not None and usage.memory > self.asked.memory

    def pause_seconds(self, usage: Usage) -> float:
        """Return how long the tree has to be stopped to keep its CPU share; 0 lets it run."""
        if self.asked.cpu is None:
            return 0.0
        now, share = time.monotonic(), self.asked.cpu / 1000
        then, used = self._seen
        self._seen = (now, usage.cpu)
        earned = self._credit + (now - then) * share - (usage.cpu - used)
        self._credit = min(SLACK, earned)
        return -earned / share if earned < 0 else 0.0
