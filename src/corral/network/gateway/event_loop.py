"""The event loop for descriptors and timers, driven from outside: it never waits by itself.

`fileno()` becomes readable when there is something to do, `deadline()` says when there will be.
"""

import _socket
import errno
import heapq
import os
import select
import sys
import time
from collections.abc import Callable

from corral.network.budgets import ACCEPT_RETRY_SECONDS

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

Handler = Callable[[int], None]

IN, OUT = 1, 4
BATCH = 64
NO_CLIENT = frozenset({errno.EAGAIN, errno.ECONNABORTED})
"""Errors of `accept` when no client waits any more."""


class Timer:
    """Calls once, at `when` or a little later, unless it is cancelled."""

    __slots__ = ("call", "when")

    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None

    def __lt__(self, other: "Timer") -> bool:
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
        """Call `handler` while a descriptor is ready."""
        if mask == 0:
            self.forget(fd)  # the kernel would still report hang-ups
            return
        known = self._watched.get(fd)
        if known is None:
            self._epoll.register(fd, mask)
        elif known[0] != mask:
            self._epoll.modify(fd, mask)
        self._watched[fd] = mask, handler

    def forget(self, fd: int) -> None:
        """Stop watching; call it before the descriptor is closed, whose number is then reused."""
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        if len(self._timers) > 4 * BATCH:
            # Short connections cancel their timers long before they are due.
            live = [timer for timer in self._timers if timer.call is not None]
            if len(live) * 2 < len(self._timers):
                heapq.heapify(live)
                self._timers = live
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
            _, handler = self._watched.get(fd, (0, None))
            # An earlier handler of this batch may have closed it. If its number was reused, that
            # handler is called for nothing: none relies on being able to read.
            if handler is None:
                continue
            try:
                handler(events)
            except OSError:
                # Handlers catch their errors; one that does not must not end the supervisor.
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
    """Sockets that are read together, and not at all while stopped or during a pause.

    What arrives meanwhile waits in the kernel, where it costs nothing.
    """

    def __init__(self, loop: Loop) -> None:
        self.active = True
        self._loop = loop
        self._handlers: dict[int, Handler] = {}
        self._paused = False

    def add(self, end: _socket.socket, read: Callable[[_socket.socket], None]) -> None:
        """Call `read` with the socket while it can be read; it must not block."""
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
        """Read again, unless there is a pause: its end starts."""
        if not self.active and not self._paused:
            self.active = True
            for fd, handler in self._handlers.items():
                self._loop.watch(fd, IN, handler)

    def pause(self, seconds: float) -> None:
        if not self._paused:
            self._paused = True
            self.stop()
            self._loop.after(seconds, self._end_pause)

    def _end_pause(self) -> None:
        self._paused = False
        self.start()

    def accept(self, listener: _socket.socket) -> _socket.socket | None:
        """Return the next connection, which does not block; None if there is none now."""
        try:
            # socket.socket.accept calls this too, but importing `socket` costs more than all this.
            fd, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001
        except OSError as error:
            # Usually descriptors are used up. The client still waits, so trying again at once
            # would never end.
            if error.errno not in NO_CLIENT:
                self.pause(ACCEPT_RETRY_SECONDS)
            return None
        os.set_blocking(fd, False)
        return _socket.socket(fileno=fd)
