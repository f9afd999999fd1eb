"""Decide when to end, kill, pause or measure a run. All systems' watchers use this module.

After a signal or a timeout, corral asks the process tree to end, and kills it GRACE_SECONDS later.
It kills a tree at once if the tree exceeds a sampled limit on memory, CPU time or tasks, and pauses
a tree that exceeds its CPU share.
"""

from __future__ import annotations

import sys
import time

from corral.abi.signal_numbers import SIGCONT, SIGINT, SIGSTOP, SIGTERM
from corral.errors import SupervisionError
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from corral.plan.model import Sample
    from corral.platforms.contract import Child, Reaped, StopReason, Usage
    from corral.platforms.sampling import Sampler

GRACE_SECONDS = 5.0
"""Seconds between asking the tree to end and killing it."""
MAX_EXACT_MEASUREMENTS = 3
"""How many exact measurements in a row must exceed the memory limit before the limit counts as
exceeded.

A single measurement can be too high. It adds up every process's share of the shared pages. If a
process ends during the measurement, the shares of the other processes grow. The next result is then
lower.
"""
STOPPED_INTERVAL = 1.0
"""The minimum time in seconds between two measurements for which the tree is paused."""
MAX_STOPPED_MEASUREMENTS = 5
STOP_SECONDS = 0.02
"""How long a measurement waits for the tree to pause."""
MAX_WAIT_MS = 2**31 - 1
MAX_TIMEOUT_WAIT_MS = 30_000
"""The longest wait while a timeout is set. A timeout includes the time that the machine spends
asleep, but a wait in the kernel does not. With this bound, a timeout that passes during sleep is
noticed at most this long after the machine wakes up.
"""


def people_time() -> float:
    """Return the time in seconds from the clock that measures the user's timeouts.

    The clock cannot be set, and keeps running while the machine sleeps.
    """
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        # On macOS, Python's `monotonic` stops while the machine sleeps.
        return time.clock_gettime(time.CLOCK_MONOTONIC)
    return time.monotonic()


class Deadlines:
    def __init__(self, child: Child, *, timeout: float | None, sample: Sample | None) -> None:
        self.child = child
        self.reason: StopReason = ""
        self._started = people_time()
        self._timeout = None if timeout is None else self._started + timeout
        self._kill_at: float | None = None
        self._sampler: Sampler | None = _sampler(sample) if sample else None
        self._sampling_error = ""
        self._cpu_seen = 0.0
        self._stop_again_at = 0.0

    def stop(self, reason: StopReason, number: int = SIGTERM) -> None:
        """Ask the tree to end. If it was asked before and `number` is SIGINT, kill it at once."""
        if self._kill_at is not None and number == SIGINT:
            self._kill()
        self.reason = self.reason or reason
        self.child.signal(number)
        # corral may have paused the tree with SIGSTOP to enforce its CPU share, and a paused tree
        # cannot react to the signal.
        self.child.signal(SIGCONT)
        self._kill_at = self._kill_at or time.monotonic() + GRACE_SECONDS

    def elapsed(self) -> float:
        return people_time() - self._started

    def run_due(self) -> None:
        """Kill the tree if its grace period is over. Ask it to end if the timeout has passed.

        Call this before `sample_if_due`, because taking a sample can be slow.
        """
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill()
            self._kill_at = now + GRACE_SECONDS
        elif self._timeout is not None and people_time() >= self._timeout:
            self._timeout = None
            self.stop("timeout")

    def sample_if_due(self, has_events: Callable[[], bool] = lambda: False) -> None:
        """Sample the tree if a sample is due.

        Interrupt the measurement at a deadline or an event. Otherwise a target could delay its own
        end by making the measurement slow.
        """
        sampler = self._sampler
        if sampler is not None and time.monotonic() >= sampler.next:
            self._sample(sampler, lambda: self._is_due() or has_events())

    def _is_due(self) -> bool:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            return True
        return self._timeout is not None and people_time() >= self._timeout

    def wait_ms(self, others: Iterable[float | None] = ()) -> int | None:
        """Return how many milliseconds to wait for the next deadline, or None if there is none. The
        wait is at most MAX_TIMEOUT_WAIT_MS while a timeout is set, and otherwise MAX_WAIT_MS.
        """
        sampling = None if self._sampler is None else self._sampler.next
        known = (self._kill_at, sampling, *others)
        waits = [when - time.monotonic() for when in known if when is not None]
        most = MAX_WAIT_MS
        if self._timeout is not None:
            waits.append(self._timeout - people_time())
            most = MAX_TIMEOUT_WAIT_MS
        return max(0, min(int(min(waits) * 1000) + 1, most)) if waits else None

    def account(self, reaped: Reaped) -> Reaped:
        """Return `reaped` with the run's usage.

        For each value, use the higher of what the system reported and what was sampled. Raise
        SupervisionError if the run was ended because its usage could not be measured.
        """
        if self._sampling_error:
            raise SupervisionError(
                f"stopped the target: its resource usage could not be read: {self._sampling_error}",
                hint="raise `ulimit -n` where corral is started",
            )
        if self._sampler is not None:
            reaped = replace(
                reaped,
                memory=max(reaped.memory, self._sampler.peak),
                tasks=max(reaped.tasks, self._sampler.tasks),
                timeline=tuple(self._sampler.timeline.moments),
            )
        return replace(reaped, cpu=max(reaped.cpu, self._cpu_seen))

    def _sample(self, sampler: Sampler, interrupted: Callable[[], bool]) -> None:
        if sampler.stopped_until is not None:
            sampler.stopped_until = None
            self.child.signal(SIGCONT)
        try:
            usage = self._measure(sampler, interrupted)
        except OSError as problem:
            self._sampling_error = problem.strerror or str(problem)
            self._sampler = None
            self.child.kill()
            return
        self._cpu_seen = max(self._cpu_seen, usage.cpu)
        if hit := sampler.check(usage):
            self.reason = self.reason or hit
            self.child.kill()
        elif pause := sampler.pause_seconds(usage):
            self.child.signal(SIGSTOP)
            sampler.stopped_until = sampler.next = time.monotonic() + pause

    def _measure(self, sampler: Sampler, interrupted: Callable[[], bool]) -> Usage:
        quick = usage = self.child.measure(interrupted=interrupted)
        for _ in range(MAX_EXACT_MEASUREMENTS):
            if not sampler.needs_exact(usage):
                break
            usage = self.child.measure(exact=True, interrupted=interrupted)
            if interrupted():
                return usage  # another measurement would be interrupted too
        if usage.steady or time.monotonic() < self._stop_again_at:
            return usage
        return self._measure_stopped(quick, interrupted)

    def _measure_stopped(self, quick: Usage, interrupted: Callable[[], bool]) -> Usage:
        """Pause the tree and measure its memory exactly.

        Without the pause a target could hide most of its memory by starting and ending processes
        all the time. During the pause no process can start, unless the target gets the kernel to
        resume a paused one. In that case return the quick measurement, which is an upper bound.
        """
        self._stop_again_at = time.monotonic() + STOPPED_INTERVAL
        try:
            for _ in range(MAX_STOPPED_MEASUREMENTS):
                self.child.signal(SIGSTOP)  # again, because new processes may have started
                time.sleep(STOP_SECONDS)
                usage = self.child.measure(exact=True, interrupted=interrupted)
                if usage.steady:  # also true if the measurement was interrupted
                    return usage
            return quick
        finally:
            self.child.signal(SIGCONT)

    def _kill(self) -> None:
        """Measure the tree's CPU time, and then kill the tree.

        Afterwards it may be too late: Linux does not report the CPU time of processes that it
        kills because their init has ended.
        """
        try:
            # An interrupted measurement returns only the CPU time, which is enough here.
            used = self.child.measure(interrupted=lambda: True)
            self._cpu_seen = max(self._cpu_seen, used.cpu)
        except OSError:
            pass  # kill the tree anyway; the report then shows too little CPU time
        self.child.kill()


def _sampler(sample: Sample) -> Sampler:
    from corral.platforms.sampling import Sampler

    return Sampler(sample)
