"""The target's DNS server: messages by UDP and TCP to `Names` and back."""

from __future__ import annotations

import _socket
import os
import sys

from corral.network import epoll
from corral.network.dns import LONGEST_QUERY, Framing, MalformedError, framed

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.network.epoll import Loop
    from corral.network.names import Names

BATCH = 64
"""Datagrams answered before others get their turn."""
PAUSE = 0.02
"""Seconds without a look after a full batch: a flood costs its sender more than the host, which
answers some thousand a second. What the kernel cannot keep until then is lost, as datagrams are."""
MOST_STREAMS = 32
PATIENCE = 10.0
"""Seconds that a TCP client may be silent."""


class Resolver:
    """Holds the sockets that it is given; nothing is kept of a query once it is answered."""

    def __init__(self, loop: Loop, names: Names, *, udp: int = -1, tcp: int = -1) -> None:
        self._loop = loop
        self._names = names
        self._streams: set[_Stream] = set()
        self._sockets: list[_socket.socket] = []
        if udp >= 0:
            datagrams = self._take(udp)
            self._listen(datagrams)
        if tcp >= 0:
            listener = self._take(tcp)
            loop.watch(tcp, epoll.IN, lambda _: self._accept(listener))

    def _take(self, fd: int) -> _socket.socket:
        os.set_blocking(fd, False)
        end = _socket.socket(fileno=fd)
        self._sockets.append(end)
        return end

    def close(self) -> None:
        for stream in list(self._streams):
            stream.close()
        for end in self._sockets:
            self._loop.forget(end.fileno())
            end.close()
        self._sockets.clear()

    def _listen(self, end: _socket.socket) -> None:
        if end.fileno() >= 0:
            self._loop.watch(end.fileno(), epoll.IN, lambda _: self._datagrams(end))

    def _datagrams(self, end: _socket.socket) -> None:
        for _ in range(BATCH):
            try:
                data, sender = end.recvfrom(LONGEST_QUERY + 1)
            except OSError:
                return  # none left, or word of one that nobody received
            answer = self._names.respond(data)
            if answer is None:
                continue
            try:
                end.sendto(answer, sender)
            except OSError:
                pass  # a client that does not receive asks again
        self._loop.forget(end.fileno())
        self._loop.after(PAUSE, lambda: self._listen(end))

    def _accept(self, end: _socket.socket) -> None:
        try:
            client = epoll.accept(end)
        except OSError:
            return
        if len(self._streams) >= MOST_STREAMS:
            client.close()
            return
        self._streams.add(_Stream(self._loop, self._names, client, self))

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
        loop.watch(client.fileno(), epoll.IN, self._ready)

    def close(self) -> None:
        self._timer.cancel()
        self._loop.forget(self._client.fileno())
        self._client.close()
        self._resolver.ended(self)

    def _ready(self, _events: int) -> None:
        try:
            chunk = self._client.recv(LONGEST_QUERY)
            answers = [self._names.respond(item) for item in self._framing.feed(chunk)]
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
