"""The event loop for descriptors and timers, driven from outside: it never waits by itself.

`fileno()` becomes readable when there is something to do, `deadline()` says when there will be.
"""

from __future__ import annotations

import _socket
import errno
import heapq
import os
import select
import sys
import time
from collections.abc import Callable

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    Handler = Callable[[int], None]

IN, OUT = 1, 4
BATCH = 64
NO_CLIENT = frozenset({errno.EAGAIN, errno.ECONNABORTED})
"""Errors of `accept` when no client waits any more. After any other error, usually because
descriptors are used up, the client still waits: trying again at once would never end."""


def accept(listener: _socket.socket) -> _socket.socket:
    """Return the next connection as a socket that never blocks; OSError if there is none."""
    # socket.socket.accept calls this too, but importing `socket` costs more than the gateway.
    fd, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001
    os.set_blocking(fd, False)
    return _socket.socket(fileno=fd)


class Timer:
    """Calls once, at `when` or a little later, unless it is cancelled."""

    __slots__ = ("call", "when")

    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when


class Loop:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._masks: dict[int, int] = {}
        self._timers: list[Timer] = []

    def fileno(self) -> int:
        return self._epoll.fileno()

    def watch(self, fd: int, mask: int, handler: Handler) -> None:
        """Call `handler` while a descriptor is ready.

        A mask of 0 forgets it, because the kernel would still report hang-ups.
        """
        if mask == 0:
            self.forget(fd)
            return
        known = self._masks.get(fd)
        if known is None:
            self._epoll.register(fd, mask)
        elif known != mask:
            self._epoll.modify(fd, mask)
        self._masks[fd] = mask
        self._handlers[fd] = handler

    def forget(self, fd: int) -> None:
        """Stop watching; call it before the descriptor is closed, whose number is then reused."""
        if self._masks.pop(fd, None) is not None:
            del self._handlers[fd]
            self._epoll.unregister(fd)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        if len(self._timers) > 4 * BATCH:
            self._sweep()
        timer = Timer(self.clock() + seconds, call)
        heapq.heappush(self._timers, timer)
        return timer

    def deadline(self) -> float | None:
        """Return when `run_ready` has to be called at the latest, by `clock`; None: never."""
        while self._timers and self._timers[0].call is None:
            heapq.heappop(self._timers)
        return self._timers[0].when if self._timers else None

    def run_ready(self) -> None:
        """Do all that can be done now without waiting."""
        for fd, events in self._epoll.poll(0, BATCH):
            handler = self._handlers.get(fd)
            # An earlier handler of this batch may have closed it. If its number was reused, that
            # handler is called for nothing: none relies on being able to read.
            if handler is not None:
                self._call(fd, handler, events)
        now = self.clock()
        while (when := self.deadline()) is not None and when <= now:
            call = heapq.heappop(self._timers).call
            if call is not None:
                call()

    def _call(self, fd: int, handler: Handler, events: int) -> None:
        """Handlers catch their errors; one that does not must not end the supervisor."""
        try:
            handler(events)
        except OSError:
            self.forget(fd)

    def close(self) -> None:
        self._timers.clear()
        self._handlers.clear()
        self._masks.clear()
        self._epoll.close()

    def _sweep(self) -> None:
        """Drop cancelled timers: short connections cancel theirs long before they are due."""
        live = [timer for timer in self._timers if timer.call is not None]
        if len(live) * 2 < len(self._timers):
            heapq.heapify(live)
            self._timers = live
