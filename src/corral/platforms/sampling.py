"""Enforce the policy's limits by sampling, on hosts that offer nothing better.

Each sample compares memory, total CPU time and the number of tasks with their limits. A CPU share
is enforced by a duty cycle: a tree that has used more than its share is paused for a while.
"""

from __future__ import annotations

import time

from corral.platforms.contract import Moment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from corral.plan.model import Sample
    from corral.platforms.contract import Usage

    Hit = Literal["memory", "cpu_time", "pids"]


INTERVAL = 0.1
"""Seconds between samples. A target that allocates 1 GiB/s can thus exceed its limit by 0.1 GiB."""
DUTY_INTERVAL = 0.02
SLACK = DUTY_INTERVAL
"""Seconds of unused CPU time that a tree may save up for a burst."""


MAX_MOMENTS = 240


class Timeline:
    """Collects samples for the report.

    When there are more than MAX_MOMENTS, every second sample is dropped.
    """

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self._started = time.monotonic()
        self._every, self._skipped = 1, 0

    def add(self, usage: Usage) -> None:
        self._skipped += 1
        if self._skipped < self._every:
            return
        self._skipped = 0
        at = int((time.monotonic() - self._started) * 1000)
        cpu = int(usage.cpu * 1000)
        self.moments.append(Moment(at_ms=at, cpu_ms=cpu, memory=usage.memory, tasks=usage.tasks))
        if len(self.moments) > MAX_MOMENTS:
            del self.moments[1::2]
            self._every *= 2


class Sampler:
    def __init__(self, asked: Sample) -> None:
        self.asked = asked
        self.timeline = Timeline()
        self.peak = 0
        self.tasks = 0
        self.next = time.monotonic()
        self.stopped_until: float | None = None
        self._seen = (time.monotonic(), 0.0)
        self._credit = SLACK

    def check(self, usage: Usage) -> Hit | None:
        """Record a sample. Return the name of a limit that it exceeds, or None."""
        self.timeline.add(usage)
        self.peak = max(self.peak, usage.memory)
        self.tasks = max(self.tasks, usage.tasks)
        interval = INTERVAL if self.asked.cpu is None else DUTY_INTERVAL
        self.next = time.monotonic() + interval
        if self.asked.memory is not None and max(usage.memory, usage.certain) > self.asked.memory:
            return "memory"
        if self.asked.cpu_time is not None and usage.cpu * 1000 >= self.asked.cpu_time:
            return "cpu_time"
        if self.asked.pids is not None and usage.tasks > self.asked.pids:
            return "pids"
        return None

    def needs_exact(self, usage: Usage) -> bool:
        """Return whether an exact measurement is needed to decide about the memory limit.

        A quick measurement counts a shared page once for each process. So if it exceeds the limit,
        the exact amount may still be below the limit. No exact measurement is needed if even
        `usage.certain` exceeds the limit, because this amount is a lower bound.
        """
        limit = self.asked.memory
        return limit is not None and usage.memory > limit >= usage.certain

    def pause_seconds(self, usage: Usage) -> float:
        """Return for how many seconds the tree must be paused to stay within its CPU share.

        Return 0 to let it run.
        """
        if self.asked.cpu is None:
            return 0.0
        now, share = time.monotonic(), self.asked.cpu / 1000
        then, used = self._seen
        self._seen = (now, usage.cpu)
        earned = self._credit + (now - then) * share - (usage.cpu - used)
        self._credit = min(SLACK, earned)
        return -earned / share if earned < 0 else 0.0
