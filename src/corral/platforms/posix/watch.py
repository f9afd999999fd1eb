"""Watch one sandbox until it has ended: deadlines, the stop sequence, what it used.

A client that is done closes stdin and waits; then sends SIGTERM and waits; then kills. The target
inherits stdin, so end of file needs no help; signals are passed on to the whole tree. Whoever asks
for the stop, the tree gets SIGTERM, GRACE to leave, then SIGKILL. Nothing here wakes up without a
reason.
"""

from __future__ import annotations

import os
import select
import sys
import time

from corral.abi.signal_numbers import FORWARDED, SIGCONT, SIGINT, SIGSTOP, SIGTERM
from corral.errors import SupervisionError
from corral.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal, Protocol

    class Way(Protocol):
        """Something that passes bytes in or out, driven by this loop."""

        def fileno(self) -> int: ...
        def deadline(self) -> float | None: ...
        def run_ready(self) -> None: ...
        def close(self) -> None: ...

    class Gateway(Way, Protocol):
        denials: Denials

        def traffic(self) -> Mapping[str, Traffic]: ...

    class Signals(Protocol):
        """Signals to corral itself, waiting to be read."""

        def fileno(self) -> int: ...
        def read(self) -> list[int]: ...

    class Watcher(Protocol):
        """Whoever stays with a target until it has ended."""

        child: Child
        reason: Reason

        def until_born(self) -> bytes: ...
        def until_end(self) -> Ending: ...
        def open(self, gateway: Gateway | None, others: Sequence[Way]) -> None: ...

    Ways = tuple[Gateway | None, Sequence[Way]]
    """The way out for what the policy allows, if it allows anything, and all others."""

    class Poll(Protocol):
        def register(self, fd: int, eventmask: int, /) -> None: ...
        def unregister(self, fd: int, /) -> None: ...
        def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]: ...

    from corral.denials.records import Denial, Denials
    from corral.denials.traffic import Traffic
    from corral.plan.model import Plan, Sample
    from corral.platforms.run_records import Run
    from corral.platforms.sampling import Sampler, Usage

    Reason = Literal["", "timeout", "memory", "cpu_time", "pids", "signal", "control"]

    class Child(Protocol):
        """A backend's hold on a running tree."""

        pid: int
        pidfd: int
        born: int

        def target(self) -> int: ...
        def signal(self, number: int) -> None: ...
        def kill(self) -> None: ...
        def measure(self, *, exact: bool = False) -> Usage: ...
        def ways(self, plan: Plan, denials: Denials | None) -> Ways: ...
        def reap(self) -> Reaped: ...


POLLIN = 1
LONGEST_POLL = 2**31 - 1
GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""


@record
class Reaped:
    """`status` is the target's wait status, None when it was killed with its tree.

    `hit` names limits that the kernel says were reached; `cpu` is in seconds, `memory` a peak.
    """

    status: int | None
    cpu: float
    memory: int
    tasks: int = 0
    hit: tuple[str, ...] = ()


@record
class Ending:
    """`reason` is why the supervisor ended it, empty if it did not."""

    born: bytes
    reaped: Reaped
    reason: Reason
    wall: float
    denials: tuple[Denial, ...] = ()
    traffic: tuple[tuple[str, Traffic], ...] = ()


class Watch:
    """One event loop over what can happen to a sandbox."""

    def __init__(
        self,
        child: Child,
        *,
        timeout: float | None,
        signals: Signals,
        control: int,
        sample: Sample | None = None,
        run: Run | None = None,
    ) -> None:
        self.child = child
        self.run = run
        self.signals = signals
        self.control = control
        self.started = time.monotonic()
        self.timeout = None if timeout is None else self.started + timeout
        self.kill_at: float | None = None
        self.reason: Reason = ""
        self.said = b""
        self.spent = 0.0
        self.gateway: Gateway | None = None
        self.ways: list[Way] = []
        self.sampler: Sampler | None = _sampler(sample) if sample else None
        self.blind = ""
        self.poll = new_poll()
        for fd in (child.pidfd, child.born, signals.fileno(), control):
            if fd >= 0:
                self.poll.register(fd, POLLIN)

    def until_born(self) -> bytes:
        """Run until the target executes or fails to; returns what was said on the way."""
        while self.child.born >= 0 and not self._step(stop_at_birth=True):
            pass
        return self.said

    def open(self, gateway: Gateway | None, others: Sequence[Way]) -> None:
        """Drive these as long as the target lives; report what went out and what did not."""
        self.gateway = gateway
        for way in (*others, *([gateway] if gateway else [])):
            self.ways.append(way)
            self.poll.register(way.fileno(), POLLIN)

    def until_end(self) -> Ending:
        while not self._step():
            pass
        reaped = self.child.reap()
        denials, traffic = self._close_ways()
        if self.run is not None:
            self.run.end()
        if self.blind:
            raise SupervisionError(
                f"the target was ended: what it uses could not be looked at: {self.blind}",
                hint="raise `ulimit -n` where corral is started",
            )
        if self.sampler is not None:
            reaped = replace(
                reaped,
                memory=max(reaped.memory, self.sampler.peak),
                tasks=max(reaped.tasks, self.sampler.tasks),
            )
        reaped = replace(reaped, cpu=max(reaped.cpu, self.spent))
        wall = time.monotonic() - self.started
        return Ending(
            born=self.said,
            reaped=reaped,
            reason=self.reason,
            wall=wall,
            denials=denials,
            traffic=traffic,
        )

    def _close_ways(self) -> tuple[tuple[Denial, ...], tuple[tuple[str, Traffic], ...]]:
        for way in self.ways:
            way.close()
        if self.gateway is None:
            return (), ()
        self.gateway.denials.close()
        return self.gateway.denials.rows(), tuple(self.gateway.traffic().items())

    def stop(self, reason: Reason, number: int = SIGTERM) -> None:
        """Ask the tree to leave; a second asking does not wait any longer."""
        if self.kill_at is not None and number == SIGINT:
            self._kill()
        self.reason = self.reason or reason
        self.child.signal(number)
        self.child.signal(SIGCONT)  # a tree that is made to rest hears nothing
        self.kill_at = self.kill_at or time.monotonic() + GRACE

    def _step(self, *, stop_at_birth: bool = False) -> bool:
        events = self.poll.poll(self._patience())
        now = time.monotonic()
        if self.kill_at is not None and now >= self.kill_at:
            self._kill()
            self.kill_at = now + GRACE
        elif self.timeout is not None and now >= self.timeout:
            self.timeout = None
            self.stop("timeout")
        if self.sampler is not None and now >= self.sampler.next:
            self._look(self.sampler)
        for way in self.ways:
            way.run_ready()
        for fd, _ in events:
            if fd == self.child.pidfd:
                self._drain_born()
                return True
            if fd == self.child.born and self._read_born() and stop_at_birth:
                return True
            if fd == self.signals.fileno():
                self._forward()
            elif fd == self.control:
                self._obey()
        return False

    def _patience(self) -> int | None:
        """Milliseconds until a deadline; None sleeps in the kernel until something happens."""
        looking = None if self.sampler is None else self.sampler.next
        passing = [way.deadline() for way in self.ways]
        known = (self.timeout, self.kill_at, looking, *passing)
        deadlines = [when for when in known if when is not None]
        if not deadlines:
            return None
        left = int((min(deadlines) - time.monotonic()) * 1000) + 1
        return max(0, min(left, LONGEST_POLL))

    def _look(self, sampler: Sampler) -> None:
        if sampler.stopped_until is not None:
            sampler.stopped_until = None
            self.child.signal(SIGCONT)
        try:
            usage = self.child.measure()
            if sampler.doubts(usage):
                usage = self.child.measure(exact=True)
        except OSError as problem:
            self.blind = problem.strerror or str(problem)
            self.sampler = None
            self.child.kill()
            return
        self.spent = max(self.spent, usage.cpu)
        if hit := sampler.look(usage):
            self.reason = self.reason or hit
            self.child.kill()
        elif rest := sampler.rest(usage):
            self.child.signal(SIGSTOP)
            sampler.stopped_until = sampler.next = time.monotonic() + rest

    def _kill(self) -> None:
        """What is killed with its init leaves no account of its CPU time: look before."""
        try:
            self.spent = max(self.spent, self.child.measure().cpu)
        except OSError:
            pass  # an account that falls short puts no end off
        self.child.kill()

    def _read_born(self) -> bool:
        chunk = os.read(self.child.born, 4096)
        self.said += chunk
        if chunk:
            return False
        self.poll.unregister(self.child.born)
        return True

    def _drain_born(self) -> None:
        try:
            while chunk := os.read(self.child.born, 4096):
                self.said += chunk
        except OSError:
            pass

    def _forward(self) -> None:
        for number in self.signals.read():
            if number in FORWARDED:
                self.stop("signal", number)

    def _obey(self) -> None:
        """A byte on the control channel is a signal to pass on; its end is the caller's death."""
        told = os.read(self.control, 16)
        if not told:
            self.poll.unregister(self.control)
            self.child.kill()
        for number in told:
            self.stop("control", number)


def _sampler(sample: Sample) -> Sampler:
    from corral.platforms.sampling import Sampler

    return Sampler(sample)


def new_poll() -> Poll:
    if sys.platform == "win32":
        raise OSError("poll is POSIX only")
    return select.poll()
