"""The target's DNS server: passes messages by UDP and TCP to `Names` and back."""

from __future__ import annotations

import _socket
import os
import sys

from corral.network.budgets import ACCEPT_RETRY_SECONDS, RateLimit
from corral.network.gateway import event_loop
from corral.network.gateway.dns_messages import (
    MAX_QUERY_BYTES,
    Framing,
    MalformedError,
    frame_message,
)
from corral.network.gateway.dns_names import Names

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

BATCH = 64
"""Datagrams answered before others get their turn."""
BURST, RATE = 256, 2048
"""Queries at once, and a second. Datagrams that the kernel cannot keep until then are lost."""
MAX_STREAMS = 32
IDLE_SECONDS = 10.0
"""How long a TCP client may be silent."""


class DnsServer:
    """Takes over the sockets; keeps nothing of a query once it is answered."""

    def __init__(
        self, loop: event_loop.Loop, names: Names, *, udp: int = -1, tcp: int = -1
    ) -> None:
        self._loop = loop
        self._names = names
        self._rate_limit = RateLimit(loop.clock, burst=BURST, rate=RATE)
        self._paused = False
        self._streams: set[_Stream] = set()
        self._sockets: dict[_socket.socket, event_loop.Handler] = {}
        if udp >= 0:
            datagrams = _nonblocking(udp)
            self._sockets[datagrams] = lambda _: self._answer_datagrams(datagrams)
        if tcp >= 0:
            listener = _nonblocking(tcp)
            self._sockets[listener] = lambda _: self._accept(listener)
        self._listen()

    def close(self) -> None:
        for stream in list(self._streams):
            stream.close()
        for end in self._sockets:
            self._loop.forget(end.fileno())
            end.close()
        self._sockets.clear()

    def _listen(self) -> None:
        self._paused = False
        for end, handler in self._sockets.items():
            self._loop.watch(end.fileno(), event_loop.IN, handler)
        for stream in self._streams:
            stream.listen()

    def count_queries(self, count: int) -> None:
        """Pause all clients, by UDP and TCP, after too many queries."""
        self._rate_limit.use(count)
        if seconds := self._rate_limit.pause_seconds():
            self._pause(seconds)

    def _pause(self, seconds: float) -> None:
        if self._paused:
            return
        self._paused = True
        for end in self._sockets:
            self._loop.forget(end.fileno())
        for stream in self._streams:
            stream.pause()
        self._loop.after(seconds, self._listen)

    def _answer_datagrams(self, end: _socket.socket) -> None:
        for _ in range(BATCH):
            if self._paused:
                return
            try:
                data, sender = end.recvfrom(MAX_QUERY_BYTES + 1)
            except OSError:
                return  # none left, or an earlier answer could not be delivered
            self.count_queries(1)
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
            if error.errno not in event_loop.NO_CLIENT:
                self._pause(ACCEPT_RETRY_SECONDS)
            return
        if len(self._streams) >= MAX_STREAMS:
            client.close()
        else:
            self._streams.add(_Stream(self._loop, self._names, client, self))
        self.count_queries(1)

    def forget(self, stream: _Stream) -> None:
        self._streams.discard(stream)


def _nonblocking(fd: int) -> _socket.socket:
    os.set_blocking(fd, False)
    return _socket.socket(fileno=fd)


class _Stream:
    """A client that sends queries by TCP."""

    def __init__(
        self, loop: event_loop.Loop, names: Names, client: _socket.socket, server: DnsServer
    ) -> None:
        self._loop = loop
        self._names = names
        self._client = client
        self._server = server
        self._framing = Framing()
        self._timer = loop.after(IDLE_SECONDS, self.close)
        self.listen()

    def listen(self) -> None:
        self._loop.watch(self._client.fileno(), event_loop.IN, self._ready)

    def pause(self) -> None:
        self._loop.forget(self._client.fileno())

    def close(self) -> None:
        self._timer.cancel()
        self._loop.forget(self._client.fileno())
        self._client.close()
        self._server.forget(self)

    def _ready(self, _events: int) -> None:
        try:
            chunk = self._client.recv(MAX_QUERY_BYTES)
            answers = [self._names.respond(item) for item in self._framing.feed(chunk)]
            self._server.count_queries(1 + len(answers))
            reply = b"".join(frame_message(item) for item in answers if item is not None)
            # A client that does not read its answers is not waited for.
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
            self._timer = self._loop.after(IDLE_SECONDS, self.close)
