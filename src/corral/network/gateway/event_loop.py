"""One event loop for descriptors and deadlines, driven from outside: it never waits by itself.

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

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

    Handler = Callable[[int], None]

IN, OUT = 1, 4
BATCH = 64
GONE = frozenset({errno.EAGAIN, errno.ECONNABORTED})
"""Nobody is there any more who could be accepted. After any other error, of which descriptors that
are used up are the usual one, whoever waits is still there: asking at once would never end."""
MOMENT = 0.1


def accept(listener: _socket.socket) -> _socket.socket:
    """A connection that waits, as a socket that never blocks; OSError if there is none."""
    # What socket.socket.accept itself calls; that module costs more than all of these.
    fd, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001
    os.set_blocking(fd, False)
    return _socket.socket(fileno=fd)


class Timer:
    """Calls once, at `when` or a little later, unless it was cancelled."""

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
        """Level-triggered. A mask of 0 forgets: the kernel reports hang-ups even for that one."""
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
        """Before the descriptor is closed: its number may be another's at once."""
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
        """When `run_ready` has to be called at the latest, by `clock`; None: never."""
        while self._timers and self._timers[0].call is None:
            heapq.heappop(self._timers)
        return self._timers[0].when if self._timers else None

    def run_ready(self) -> None:
        """All that can be done now without waiting."""
        for fd, events in self._epoll.poll(0, BATCH):
            handler = self._handlers.get(fd)
            # An earlier handler of this batch may have closed it. If the number is another's
            # already, that one is woken for nothing: no handler trusts in being able to read.
            if handler is not None:
                self._call(fd, handler, events)
        now = self.clock()
        while (when := self.deadline()) is not None and when <= now:
            call = heapq.heappop(self._timers).call
            if call is not None:
                call()

    def _call(self, fd: int, handler: Handler, events: int) -> None:
        """Handlers deal with what can go wrong; if one does not, it must not end the supervisor."""
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
        """Short connections cancel their timers long before they are due."""
        live = [timer for timer in self._timers if timer.call is not None]
        if len(live) * 2 < len(self._timers):
            heapq.heapify(live)
            self._timers = live
