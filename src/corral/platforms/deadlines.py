"""When a run is asked to stop, killed, or measured: one state machine for every watcher.

Whatever causes the stop, the tree is asked to leave, has GRACE_SECONDS, and is killed then. The
watchers differ only in how they wait.
"""

from __future__ import annotations

import time

from corral.abi.signal_numbers import SIGCONT, SIGINT, SIGSTOP, SIGTERM
from corral.errors import SupervisionError
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from corral.plan.model import Sample
    from corral.platforms.contract import Child, Reaped, StopReason
    from corral.platforms.sampling import Sampler

GRACE_SECONDS = 5.0
"""Between asking the tree to leave and killing it."""
MAX_WAIT_MS = 2**31 - 1


class Deadlines:
    def __init__(self, child: Child, *, timeout: float | None, sample: Sample | None) -> None:
        self.child = child
        self.reason: StopReason = ""
        self.started = time.monotonic()
        self._timeout = None if timeout is None else self.started + timeout
        self._kill_at: float | None = None
        self._sampler: Sampler | None = _sampler(sample) if sample else None
        self._sampling_error = ""
        self._cpu_seen = 0.0

    def stop(self, reason: StopReason, number: int = SIGTERM) -> None:
        """Ask the tree to leave. A second interrupt does not wait any longer."""
        if self._kill_at is not None and number == SIGINT:
            self._kill()
        self.reason = self.reason or reason
        self.child.signal(number)
        self.child.signal(SIGCONT)  # a tree that the duty cycle has stopped would not hear it
        self._kill_at = self._kill_at or time.monotonic() + GRACE_SECONDS

    def run_due(self) -> None:
        """Do what is due by now: kill, or time out. Samples come after these and after signals."""
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill()
            self._kill_at = now + GRACE_SECONDS
        elif self._timeout is not None and now >= self._timeout:
            self._timeout = None
            self.stop("timeout")

    def sample_if_due(self, has_events: Callable[[], bool] = lambda: False) -> None:
        """Sample, until a deadline or an event of the supervisor's own comes.

        A target decides how long a measurement takes, and must not delay its own end with that.
        """
        sampler = self._sampler
        if sampler is not None and time.monotonic() >= sampler.next:
            self._sample(sampler, lambda: self._is_due() or has_events())

    def _is_due(self) -> bool:
        now = time.monotonic()
        return any(when is not None and now >= when for when in (self._kill_at, self._timeout))

    def wait_ms(self, others: Iterable[float | None] = ()) -> int | None:
        """Return the milliseconds until the next deadline; None waits until something happens."""
        sampling = None if self._sampler is None else self._sampler.next
        known = (self._timeout, self._kill_at, sampling, *others)
        deadlines = [when for when in known if when is not None]
        if not deadlines:
            return None
        left = int((min(deadlines) - time.monotonic()) * 1000) + 1
        return max(0, min(left, MAX_WAIT_MS))

    def account(self, reaped: Reaped) -> Reaped:
        """Add what sampling saw to what the system reports. Raise if the run ended because its use
        could no longer be measured.
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
            )
        return replace(reaped, cpu=max(reaped.cpu, self._cpu_seen))

    def _sample(self, sampler: Sampler, interrupted: Callable[[], bool]) -> None:
        if sampler.stopped_until is not None:
            sampler.stopped_until = None
            self.child.signal(SIGCONT)
        try:
            usage = self.child.measure(interrupted=interrupted)
            if sampler.needs_exact(usage):
                usage = self.child.measure(exact=True, interrupted=interrupted)
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

    def _kill(self) -> None:
        """Measure first: a tree that is killed with its init leaves no record of its CPU time."""
        try:
            used = self.child.measure(interrupted=lambda: True)  # CPU time, and not memory
            self._cpu_seen = max(self._cpu_seen, used.cpu)
        except OSError:
            pass  # CPU time is then under-reported; that must not delay the kill
        self.child.kill()


def _sampler(sample: Sample) -> Sampler:
    from corral.platforms.sampling import Sampler

    return Sampler(sample)
