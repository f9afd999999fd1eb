"""Watch one sandbox until it has ended, in one event loop.

An MCP client ends a server in three steps: it closes stdin, then sends SIGTERM, then kills the
server. The target inherits stdin and sees the end of file itself. The signals go to corral, which
passes them on to the whole tree. The loop wakes up only for an event or a deadline.
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
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from corral.denials.records import Denial, Denials
    from corral.network.traffic import Traffic
    from corral.plan.model import Sample
    from corral.platforms.contract import Child, Gateway, Service, Signals, StopReason
    from corral.platforms.run_records import Run

    class Poll(Protocol):
        def register(self, fd: int, eventmask: int, /) -> None: ...
        def unregister(self, fd: int, /) -> None: ...
        def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]: ...


POLLIN = 1
PRELOAD_SECONDS = 0.5
"""How long a run lasts before the supervisor imports the modules that it may need later. An import
at the moment of need could come too late, because the package can be replaced on disk during a long
run. Shorter runs do not have to wait for these imports.
"""


class Watch:
    def __init__(
        self,
        child: Child,
        *,
        timeout: float | None,
        signals: Signals,
        control: int,
        sample: Sample | None,
        run: Run,
    ) -> None:
        self.child = child
        self.run = run
        self.signals = signals
        self.control = control
        self.deadlines = Deadlines(child, timeout=timeout, sample=sample)
        self.exec_result = b""
        self.gateway: Gateway | None = None
        self.services: list[Service] = list(child.services)
        self._denials: Denials | None = None
        self._preload_at: float | None = None
        self._preload: Callable[[], None] | None = None
        self.poll, self._events = new_poll(), new_poll()
        for fd in (child.pidfd, child.exec_pipe, signals.fileno(), control):
            if fd >= 0:
                self.poll.register(fd, POLLIN)
                if fd != child.exec_pipe:
                    self._events.register(fd, POLLIN)
        for service in self.services:
            self.poll.register(service.fileno(), POLLIN)

    @property
    def reason(self) -> StopReason:
        return self.deadlines.reason

    def until_exec(self) -> bytes:
        """Run until the target's exec succeeds or fails. Return the content of the exec pipe."""
        while self.child.exec_pipe >= 0 and not self._step(stop_at_exec=True):
            pass
        return self.exec_result

    def open(self, denials: Denials, gateway: Gateway | None, others: Sequence[Service]) -> None:
        self._denials = denials
        self._preload_at = time.monotonic() + PRELOAD_SECONDS
        self.gateway = gateway
        for service in (*others, *([gateway] if gateway else [])):
            self.services.append(service)
            if service.fileno() >= 0:
                self.poll.register(service.fileno(), POLLIN)

    def until_end(self, preload: Callable[[], None] | None = None) -> Ending:
        """Watch until the run ends.

        `preload` is called after PRELOAD_SECONDS, to import modules that the caller needs later.
        """
        self._preload = preload
        while not self._step():
            pass
        reaped = self.child.reap()
        replaced = [text for service in self.services for text in getattr(service, "replaced", ())]
        denials, traffic = self._close_services()
        self.run.end()
        return Ending(
            reaped=self.deadlines.account(reaped),
            reason=self.reason,
            wall=self.deadlines.elapsed(),
            denials=denials,
            traffic=traffic,
            replaced=tuple(replaced),
        )

    def _close_services(self) -> tuple[tuple[Denial, ...], tuple[tuple[str, Traffic], ...]]:
        for service in self.services:
            service.close()
        traffic = tuple(self.gateway.traffic().items()) if self.gateway else ()
        if self._denials is None:
            return (), traffic
        self._denials.close()
        return self._denials.rows(), traffic

    def _step(self, *, stop_at_exec: bool = False) -> bool:
        waits = [self._preload_at, *(service.deadline() for service in self.services)]
        events = self.poll.poll(self.deadlines.wait_ms(waits))
        self.deadlines.run_due()
        if self._preload_at is not None and time.monotonic() >= self._preload_at:
            self._preload_at = None
            self.child.preload()
            if self._denials is not None:
                self._denials.load_hide()
            if self._preload is not None:
                self._preload()
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
        """Return whether the run has ended, or a signal or control message for corral is waiting.
        Such an event interrupts a measurement of the tree. Events of services do not, because a
        target could cause them all the time, and no measurement would be completed.
        """
        return bool(self._events.poll(0))

    def _read_exec_pipe(self) -> bool:
        """Read from the exec pipe. Return whether the pipe is at its end."""
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
        """Read signal numbers from the caller, and send these signals to the tree. At end of file
        the caller has ended, so kill the tree.
        """
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
