"""Run handlers for descriptors and timers in an event loop that never waits. The caller waits
instead, and calls `run_ready()` when `fileno()` becomes readable and at `deadline()`.
"""

from __future__ import annotations

import _heapq as heapq
import _socket
import errno
import os
import select
import sys
import time

from corral.network.budgets import ACCEPT_RETRY_SECONDS, RateLimit

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

    Handler = Callable[[int], None]


IN, OUT = 1, 4
BATCH = 64
NO_CLIENT = frozenset({errno.EAGAIN, errno.ECONNABORTED})
"""Errors from `accept` after which no client is waiting."""


class Timer:
    """Calls `call` once, at `when` or a little later, unless it is cancelled."""

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
        self._watched: dict[int, tuple[int, Handler]] = {}
        self._timers: list[Timer] = []

    def fileno(self) -> int:
        return self._epoll.fileno()

    def watch(self, fd: int, mask: int, handler: Handler) -> None:
        """Call `handler` whenever an event in `mask` or an error occurs on the descriptor."""
        if mask == 0:
            self.forget(fd)  # with an empty mask the kernel would still report hang-ups
            return
        known = self._watched.get(fd)
        if known is None:
            self._epoll.register(fd, mask)
        elif known[0] != mask:
            self._epoll.modify(fd, mask)
        self._watched[fd] = mask, handler

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor. Call this before the descriptor is closed, because its number
        may be reused at once.
        """
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        if len(self._timers) > 4 * BATCH:
            # Remove cancelled timers. Otherwise the list would keep growing, because short
            # connections cancel their timers long before they are due.
            live = [timer for timer in self._timers if timer.call is not None]
            if len(live) * 2 < len(self._timers):
                heapq.heapify(live)
                self._timers = live
        timer = Timer(self.clock() + seconds, call)
        heapq.heappush(self._timers, timer)
        return timer

    def deadline(self) -> float | None:
        """Return when the next timer is due, as a time of `clock`, or None if no timer is set."""
        while self._timers and self._timers[0].call is None:
            heapq.heappop(self._timers)
        return self._timers[0].when if self._timers else None

    def run_ready(self) -> None:
        """Run up to BATCH ready handlers and all timers that are due, without waiting."""
        for fd, events in self._epoll.poll(0, BATCH):
            _, handler = self._watched.get(fd, (0, None))
            # An earlier handler in this batch may have closed the descriptor. If its number is
            # already in use again, the new handler is called although nothing has happened. Every
            # handler tolerates such a call.
            if handler is None:
                continue
            try:
                handler(events)
            except OSError:
                # An error that a handler does not catch must not end the supervisor, so the loop
                # only stops watching this descriptor.
                self.forget(fd)
        now = self.clock()
        while (when := self.deadline()) is not None and when <= now:
            call = heapq.heappop(self._timers).call
            if call is not None:
                call()

    def close(self) -> None:
        self._timers.clear()
        self._watched.clear()
        self._epoll.close()


class Inputs:
    """Watches sockets for input, and starts, stops and pauses reading from all of them together.

    Reading pauses if there are more requests than `rate_limit` allows. Data that arrives during a
    pause waits in the kernel.
    """

    def __init__(self, loop: Loop, rate_limit: RateLimit | None = None) -> None:
        self.active = True
        self._loop = loop
        self._rate_limit = rate_limit
        self._handlers: dict[int, Handler] = {}
        self._paused = False

    def add(self, end: _socket.socket, read: Callable[[_socket.socket], None]) -> None:
        """Call `read` with the socket whenever the socket is readable. `read` must not block."""
        end.setblocking(False)
        handler = self._handlers[end.fileno()] = lambda _: read(end)
        if self.active:
            self._loop.watch(end.fileno(), IN, handler)

    def close(self, end: _socket.socket) -> None:
        del self._handlers[end.fileno()]
        self._loop.forget(end.fileno())
        end.close()

    def stop(self) -> None:
        self.active = False
        for fd in self._handlers:
            self._loop.forget(fd)

    def start(self) -> None:
        """Start reading again. During a pause do nothing: the end of the pause restarts reading."""
        if not self.active and not self._paused:
            self.active = True
            for fd, handler in self._handlers.items():
                self._loop.watch(fd, IN, handler)

    def pause(self, seconds: float) -> None:
        if not self._paused:
            self._paused = True
            self.stop()
            self._loop.after(seconds, self._end_pause)

    def count_requests(self, count: int) -> None:
        if self._rate_limit is not None:
            self._rate_limit.use(count)
            if seconds := self._rate_limit.pause_seconds():
                self.pause(seconds)

    def _end_pause(self) -> None:
        self._paused = False
        self.start()

    def accept(self, listener: _socket.socket) -> _socket.socket | None:
        """Return the next connection as a non-blocking socket, or None if none can be accepted."""
        try:
            # `socket.accept` calls this private method too, but `socket` itself is slow to import.
            fd, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001
        except OSError as error:
            # Usually `accept` fails because no descriptor is free. The client is still waiting, so
            # without a pause the loop would try again and again.
            if error.errno not in NO_CLIENT:
                self.pause(ACCEPT_RETRY_SECONDS)
            return None
        os.set_blocking(fd, False)
        return _socket.socket(fileno=fd)
