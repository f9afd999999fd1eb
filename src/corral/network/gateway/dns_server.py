"""Receive the target's DNS queries over UDP and TCP, and send the answers that `Names` returns."""

import _socket
import errno
import sys

from corral.network.budgets import RateLimit
from corral.network.gateway import dns_messages as dns
from corral.network.gateway import event_loop
from corral.network.gateway.dns_names import Names

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import Protocol

    class Pair(Protocol):
        """A socket pair. The target uses one end of it as if it were a datagram socket.

        `is_resolver` returns whether the target has connected its end to the DNS resolver's
        address. If it has, its datagrams are DNS queries. Otherwise they are refused.
        """

        def is_resolver(self) -> bool: ...
        def refuse(self) -> None: ...
        def closed(self) -> object: ...


BATCH = 64
"""The number of datagrams that are answered in a row before other clients are served."""
BURST, RATE = 256, 2048
"""The rate limit for the queries of all clients together: BURST queries at once, and then RATE per
second. Further datagrams wait in the kernel's buffer, or are lost if it is full.
"""
MAX_STREAMS = 32
MAX_PAIRS = 128
"""The maximum number of socket pairs. For a target without a network namespace, each datagram
socket is replaced with such a pair.
"""
IDLE_SECONDS = 10.0
"""A TCP client that sends no query for this many seconds is disconnected."""


class DnsServer:
    """Answers the target's DNS queries. This object owns the given sockets and closes them."""

    def __init__(
        self, loop: event_loop.Loop, names: Names, *, udp: int = -1, tcp: int = -1
    ) -> None:
        self.loop = loop
        self.names = names
        self.inputs = event_loop.Inputs(loop, RateLimit(loop.clock, burst=BURST, rate=RATE))
        self.streams: set[_Stream] = set()
        self._pairs: dict[_socket.socket, Pair] = {}
        self._sockets: list[_socket.socket] = []
        for fd, read in ((udp, self._answer_datagrams), (tcp, self._accept)):
            if fd >= 0:
                self._sockets.append(_socket.socket(fileno=fd))
                self.inputs.add(self._sockets[-1], read)

    def close(self) -> None:
        for stream in list(self.streams):
            stream.close()
        for end in (*self._sockets, *self._pairs):
            self.inputs.close(end)

    def add_pair(self, end: _socket.socket, pair: "Pair") -> None:
        """Serve a socket pair. `end` is the supervisor's end, and the target has the other end.
        Raise OSError if there are too many pairs.
        """
        if len(self._pairs) >= MAX_PAIRS:
            end.close()
            raise OSError(errno.EMFILE, "too many datagram sockets")
        self._pairs[end] = pair
        self.inputs.add(end, self._answer_pair)

    def add_stream(self, client: _socket.socket) -> None:
        """Serve a client that sends queries over TCP. If there are too many clients already, close
        the connection.
        """
        if len(self.streams) >= MAX_STREAMS:
            client.close()
        else:
            self.streams.add(_Stream(self, client))
        self.inputs.count_requests(1)

    def _answer_datagrams(self, end: _socket.socket) -> None:
        for _ in range(BATCH):
            if not self.inputs.active:
                return
            try:
                data, sender = end.recvfrom(dns.MAX_QUERY_BYTES + 1)
            except OSError:
                # No datagram is left, or the kernel reports that an earlier answer could not be
                # delivered.
                return
            self.inputs.count_requests(1)
            answer = self.names.respond(data)
            if answer is None:
                continue
            try:
                end.sendto(answer, sender)
            except OSError:
                pass  # a client that gets no answer asks again

    def _accept(self, listener: _socket.socket) -> None:
        client = self.inputs.accept(listener)
        if client is not None:
            self.add_stream(client)

    def _answer_pair(self, end: _socket.socket) -> None:
        for _ in range(BATCH):
            if not self.inputs.active:
                return
            try:
                if not self._answer_datagram(end):
                    self._close_pair(end)
                    return
            except BlockingIOError:
                return
            self.inputs.count_requests(1)

    def _answer_datagram(self, end: _socket.socket) -> bool:
        """Answer a datagram, and return whether the pair stays open.

        A datagram that is not for the resolver is not read, and the pair is closed. Because of the
        unread datagram, the target gets ECONNRESET. Otherwise it would wait for an answer.
        """
        pair = self._pairs[end]
        peek = 0 if pair.is_resolver() else _socket.MSG_PEEK
        try:
            data = end.recv(dns.MAX_QUERY_BYTES + 1, peek)
        except ConnectionError:
            return False
        if not data:
            return False
        if peek:
            pair.refuse()
            return False
        answer = self.names.respond(data)
        try:
            if answer is not None:
                end.send(answer)
        except OSError:
            pass  # a client that does not get its answer asks again
        return True

    def _close_pair(self, end: _socket.socket) -> None:
        pair = self._pairs.pop(end)
        self.inputs.close(end)
        self.inputs.count_requests(1)
        pair.closed()


class _Stream:
    def __init__(self, server: DnsServer, client: _socket.socket) -> None:
        self._server = server
        self._client = client
        self._framing = dns.Framing()
        self._timer = server.loop.after(IDLE_SECONDS, self.close)
        server.inputs.add(client, self._read)

    def close(self) -> None:
        self._timer.cancel()
        self._server.inputs.close(self._client)
        self._server.streams.discard(self)

    def _read(self, client: _socket.socket) -> None:
        try:
            chunk = client.recv(dns.MAX_QUERY_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        try:
            answers = [self._server.names.respond(item) for item in self._framing.feed(chunk)]
            self._server.inputs.count_requests(1 + len(answers))
            reply = b"".join(dns.frame_message(item) for item in answers if item is not None)
            # If the client's buffer is full, `send` raises BlockingIOError or sends only a part of
            # the reply. The connection is then closed, because the client would wait for the
            # missing bytes forever.
            whole = client.send(reply) == len(reply) if reply else True
        except (OSError, dns.MalformedError):
            self.close()
            return
        if not chunk or not whole:
            self.close()
        elif answers:
            self._timer.cancel()
            self._timer = self._server.loop.after(IDLE_SECONDS, self.close)
