"""Watch one sandbox until it has ended, in one event loop.

A client that is done closes stdin and waits; then sends SIGTERM and waits; then kills. The target
inherits stdin, so end of file needs no help; signals are passed on to the whole tree. The loop
never wakes up without a reason.
"""

from __future__ import annotations

import os
import select
import sys
import time

from corral.abi.signal_numbers import FORWARDED
from corral.platforms.contract import Ending
from corral.platforms.deadlines import Deadlines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from corral.denials.records import Denial
    from corral.network.traffic import Traffic
    from corral.plan.model import Sample
    from corral.platforms.contract import Child, Gateway, Service, Signals, StopReason
    from corral.platforms.run_records import Run

    class Poll(Protocol):
        def register(self, fd: int, eventmask: int, /) -> None: ...
        def unregister(self, fd: int, /) -> None: ...
        def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]: ...


POLLIN = 1


class Watch:
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
        self.deadlines = Deadlines(child, timeout=timeout, sample=sample)
        self.exec_result = b""
        self.gateway: Gateway | None = None
        self.services: list[Service] = []
        self.poll, self._events = new_poll(), new_poll()
        for fd in (child.pidfd, child.exec_pipe, signals.fileno(), control):
            if fd >= 0:
                self.poll.register(fd, POLLIN)
                if fd != child.exec_pipe:
                    self._events.register(fd, POLLIN)

    @property
    def reason(self) -> StopReason:
        return self.deadlines.reason

    def until_exec(self) -> bytes:
        """Run until the target executes or fails to; return what the exec pipe carried."""
        while self.child.exec_pipe >= 0 and not self._step(stop_at_exec=True):
            pass
        return self.exec_result

    def open(self, gateway: Gateway | None, others: Sequence[Service]) -> None:
        """Drive these services as long as the target lives."""
        self.gateway = gateway
        for service in (*others, *([gateway] if gateway else [])):
            self.services.append(service)
            self.poll.register(service.fileno(), POLLIN)

    def until_end(self) -> Ending:
        while not self._step():
            pass
        reaped = self.child.reap()
        replaced = [text for service in self.services for text in getattr(service, "replaced", ())]
        denials, traffic = self._close_services()
        if self.run is not None:
            self.run.end()
        return Ending(
            exec_result=self.exec_result,
            reaped=self.deadlines.account(reaped),
            reason=self.reason,
            wall=time.monotonic() - self.deadlines.started,
            denials=denials,
            traffic=traffic,
            replaced=tuple(replaced),
        )

    def _close_services(self) -> tuple[tuple[Denial, ...], tuple[tuple[str, Traffic], ...]]:
        for service in self.services:
            service.close()
        if self.gateway is None:
            return (), ()
        self.gateway.denials.close()
        return self.gateway.denials.rows(), tuple(self.gateway.traffic().items())

    def _step(self, *, stop_at_exec: bool = False) -> bool:
        waits = [service.deadline() for service in self.services]
        events = self.poll.poll(self.deadlines.wait_ms(waits))
        self.deadlines.run_due()
        for service in self.services:
            service.run_ready()
        for fd, _ in events:
            if fd == self.child.pidfd:
                self._drain_exec_pipe()
                return True
            if fd == self.child.exec_pipe and self._read_exec_pipe() and stop_at_exec:
                return True
            if fd == self.signals.fileno():
                self._forward()
            elif fd == self.control:
                self._read_control()
        self.deadlines.sample_if_due(self._has_events)
        return False

    def _has_events(self) -> bool:
        """Return whether the run ended or was told something; a service's clients do not count,
        because a target could keep those busy.
        """
        return bool(self._events.poll(0))

    def _read_exec_pipe(self) -> bool:
        """Return whether the pipe has ended."""
        chunk = os.read(self.child.exec_pipe, 4096)
        self.exec_result += chunk
        if chunk:
            return False
        self.poll.unregister(self.child.exec_pipe)
        return True

    def _drain_exec_pipe(self) -> None:
        try:
            while chunk := os.read(self.child.exec_pipe, 4096):
                self.exec_result += chunk
        except OSError:
            pass

    def _forward(self) -> None:
        for number in self.signals.read():
            if number in FORWARDED:
                self.deadlines.stop("signal", number)

    def _read_control(self) -> None:
        """Pass on each byte as a signal; the end of the control channel is the caller's death."""
        numbers = os.read(self.control, 16)
        if not numbers:
            self.poll.unregister(self.control)
            self._events.unregister(self.control)
            self.child.kill()
        for number in numbers:
            self.deadlines.stop("control", number)


def new_poll() -> Poll:
    if sys.platform == "win32":
        raise OSError("poll is POSIX only")
    return select.poll()
