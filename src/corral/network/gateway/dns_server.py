"""The target's DNS server: passes messages by UDP and TCP to `Names` and back."""

import _socket
import sys

from corral.network.budgets import RateLimit
from corral.network.gateway import dns_messages as dns
from corral.network.gateway import event_loop
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
        self.loop = loop
        self.names = names
        self._rate_limit = RateLimit(loop.clock, burst=BURST, rate=RATE)
        self.inputs = event_loop.Inputs(loop)
        self.streams: set[_Stream] = set()
        self._sockets: list[_socket.socket] = []
        for fd, read in ((udp, self._answer_datagrams), (tcp, self._accept)):
            if fd >= 0:
                self._sockets.append(_socket.socket(fileno=fd))
                self.inputs.add(self._sockets[-1], read)

    def close(self) -> None:
        for stream in list(self.streams):
            stream.close()
        for end in self._sockets:
            self.inputs.close(end)

    def count_queries(self, count: int) -> None:
        """Pause all clients, by UDP and TCP, after too many queries."""
        self._rate_limit.use(count)
        if seconds := self._rate_limit.pause_seconds():
            self.inputs.pause(seconds)

    def _answer_datagrams(self, end: _socket.socket) -> None:
        for _ in range(BATCH):
            if not self.inputs.active:
                return
            try:
                data, sender = end.recvfrom(dns.MAX_QUERY_BYTES + 1)
            except OSError:
                return  # none left, or an earlier answer could not be delivered
            self.count_queries(1)
            answer = self.names.respond(data)
            if answer is None:
                continue
            try:
                end.sendto(answer, sender)
            except OSError:
                pass  # a client that does not receive asks again

    def _accept(self, listener: _socket.socket) -> None:
        client = self.inputs.accept(listener)
        if client is None:
            return
        if len(self.streams) >= MAX_STREAMS:
            client.close()
        else:
            self.streams.add(_Stream(self, client))
        self.count_queries(1)


class _Stream:
    """A client that sends queries by TCP."""

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
            answers = [self._server.names.respond(item) for item in self._framing.feed(chunk)]
            self._server.count_queries(1 + len(answers))
            reply = b"".join(dns.frame_message(item) for item in answers if item is not None)
            # A client that does not read its answers is not waited for.
            whole = client.send(reply) == len(reply) if reply else True
        except BlockingIOError:
            return
        except (OSError, dns.MalformedError):
            self.close()
            return
        if not chunk or not whole:
            self.close()
        elif answers:
            self._timer.cancel()
            self._timer = self._server.loop.after(IDLE_SECONDS, self.close)
