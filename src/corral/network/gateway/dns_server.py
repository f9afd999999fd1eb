"""The target's DNS server: messages by UDP and TCP to `Names` and back."""

from __future__ import annotations

import _socket
import os
import sys

from corral.network.budgets import Pace
from corral.network.gateway import event_loop
from corral.network.gateway.dns_messages import LONGEST_QUERY, Framing, MalformedError, framed

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.network.gateway.dns_names import Names
    from corral.network.gateway.event_loop import Handler, Loop

BATCH = 64
"""Datagrams answered before others get their turn."""
BURST, RATE = 256, 2048
"""Questions at once, and a second. What the kernel cannot keep until then is lost, as datagrams
are."""
MOST_STREAMS = 32
PATIENCE = 10.0
"""Seconds that a TCP client may be silent."""


class Resolver:
    """Holds the sockets that it is given; nothing is kept of a query once it is answered."""

    def __init__(self, loop: Loop, names: Names, *, udp: int = -1, tcp: int = -1) -> None:
        self._loop = loop
        self._names = names
        self._pace = Pace(loop.clock, burst=BURST, rate=RATE)
        self._resting = False
        self._streams: set[_Stream] = set()
        self._sockets: dict[_socket.socket, Handler] = {}
        if udp >= 0:
            datagrams = self._take(udp)
            self._sockets[datagrams] = lambda _: self._datagrams(datagrams)
        if tcp >= 0:
            listener = self._take(tcp)
            self._sockets[listener] = lambda _: self._accept(listener)
        self._listen()

    def _take(self, fd: int) -> _socket.socket:
        os.set_blocking(fd, False)
        return _socket.socket(fileno=fd)

    def close(self) -> None:
        for stream in list(self._streams):
            stream.close()
        for end in self._sockets:
            self._loop.forget(end.fileno())
            end.close()
        self._sockets.clear()

    def _listen(self) -> None:
        self._resting = False
        for end, handler in self._sockets.items():
            self._loop.watch(end.fileno(), event_loop.IN, handler)
        for stream in self._streams:
            stream.listen()

    def spend(self, count: int) -> None:
        """After too many questions nobody is heard for a while, however they were asked."""
        self._pace.spend(count)
        if rest := self._pace.rest():
            self._rest(rest)

    def _rest(self, seconds: float) -> None:
        if self._resting:
            return
        self._resting = True
        for end in self._sockets:
            self._loop.forget(end.fileno())
        for stream in self._streams:
            stream.rest()
        self._loop.after(seconds, self._listen)

    def _datagrams(self, end: _socket.socket) -> None:
        for _ in range(BATCH):
            if self._resting:
                return
            try:
                data, sender = end.recvfrom(LONGEST_QUERY + 1)
            except OSError:
                return  # none left, or word of one that nobody received
            self.spend(1)
            answer = self._names.respond(data)
            if answer is None:
                continue
            try:
                end.sendto(answer, sender)
            except OSError:
                pass  # a client that does not receive asks again

    def _accept(self, end: _socket.socket) -> None:
        try:
            client = event_loop.accept(end)
        except OSError as error:
            if error.errno not in event_loop.GONE:
                self._rest(event_loop.MOMENT)
            return
        if len(self._streams) >= MOST_STREAMS:
            client.close()
        else:
            self._streams.add(_Stream(self._loop, self._names, client, self))
        self.spend(1)

    def ended(self, stream: _Stream) -> None:
        self._streams.discard(stream)


class _Stream:
    """A client that asks by TCP, one question or many."""

    def __init__(
        self, loop: Loop, names: Names, client: _socket.socket, resolver: Resolver
    ) -> None:
        self._loop = loop
        self._names = names
        self._client = client
        self._resolver = resolver
        self._framing = Framing()
        self._timer = loop.after(PATIENCE, self.close)
        self.listen()

    def listen(self) -> None:
        self._loop.watch(self._client.fileno(), event_loop.IN, self._ready)

    def rest(self) -> None:
        self._loop.forget(self._client.fileno())

    def close(self) -> None:
        self._timer.cancel()
        self._loop.forget(self._client.fileno())
        self._client.close()
        self._resolver.ended(self)

    def _ready(self, _events: int) -> None:
        try:
            chunk = self._client.recv(LONGEST_QUERY)
            answers = [self._names.respond(item) for item in self._framing.feed(chunk)]
            self._resolver.spend(1 + len(answers))
            reply = b"".join(framed(item) for item in answers if item is not None)
            # One that asks without reading the answers is not waited for.
            whole = self._client.send(reply) == len(reply) if reply else True
        except BlockingIOError:
            return
        except (OSError, MalformedError):
            self.close()
            return
        if not chunk or not whole:
            self.close()
        elif answers:
            self._timer.cancel()
            self._timer = self._loop.after(PATIENCE, self.close)
