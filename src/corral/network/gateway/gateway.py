"""Accept the target's connections in a run with an allowlist, check and dial their destinations,
and copy the data.

The gateway is part of the supervisor, outside the sandbox. Its listeners are in the target's
network namespace, where they receive the connections to all addresses. The local address of an
accepted socket is the destination that the target wanted, so the gateway never takes an address
from the target's data.

Without namespaces the gateway has no listeners. Instead, the socket broker asks the gateway whether
an address is allowed (`find_destination`), and then hands the connection over to it (`admit`).

The supervisor calls the gateway like this:

    gateway = Gateway(DestinationCheck(...), listeners=[...], dns_udp=..., dns_tcp=...)
    until the end of the run:
        wait until gateway.fileno() is readable or gateway.deadline() has come
        gateway.run_ready()
    gateway.close()
"""

from __future__ import annotations

import _socket
import sys
import time

from corral.network import budgets
from corral.network.addresses import parse_address, unmap
from corral.network.destinations import Destination, DestinationCheck
from corral.network.gateway import (
    connection,
    dns_server,
    event_loop,
    host_lookups,
    raw_packets,
    splice,
)
from corral.network.gateway.dns_names import Names
from corral.network.sockets import close_socket, look_up_addresses
from corral.network.traffic import Traffic, count_connection

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_CONNECTIONS = 512
MAX_ACCEPTED = 16
"""The number of connections that are accepted in a row before other inputs are served."""
MAX_FAILED = 256
"""The rate limit for connections that are denied, or that fail before they transfer data: this many
at once, and then this many per second.
"""
MAX_WAITING = 256
"""The maximum number of connections from the socket broker that wait until other connections end.
"""
OTHER_DESCRIPTORS = 128
"""The number of descriptors that are kept free for the supervisor itself, DNS clients and lookups.
"""


class Gateway:
    """Serves the target's connections and DNS queries. This object owns the given descriptors and
    closes them.
    """

    def __init__(
        self,
        check: DestinationCheck,
        *,
        listeners: Sequence[int],
        dns_udp: int = -1,
        dns_tcp: int = -1,
        resets: Sequence[int] = (),
        datagrams: Sequence[int] = (),
        lookup: host_lookups.Lookup = look_up_addresses,
        timeouts: budgets.Timeouts = budgets.Timeouts(),  # noqa: B008 - records are frozen
        max_connections: int = MAX_CONNECTIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.denials = check.denials
        self.names = Names(check)
        others = 2 * splice.MAX_PIPES + budgets.MAX_EXTRA_DIALS + OTHER_DESCRIPTORS
        others += 0 if listeners else MAX_WAITING + dns_server.MAX_PAIRS
        self._max_connections = budgets.reserve_descriptors(max_connections, others=others)
        self._loop = loop = event_loop.Loop(clock)
        self.fileno, self.deadline, self.run_ready = loop.fileno, loop.deadline, loop.run_ready
        self._rate_limit = budgets.RateLimit(clock, burst=MAX_FAILED, rate=MAX_FAILED)
        self.pause_seconds = self._rate_limit.pause_seconds
        self.dns_server = dns_server.DnsServer(self._loop, self.names, udp=dns_udp, tcp=dns_tcp)
        self._packets = raw_packets.RawPackets(
            loop, self.denials, resets=resets, datagrams=datagrams, names=self.names
        )
        self._traffic: dict[str, Traffic] = {}
        self._connections: set[connection.Connection] = set()
        self._waiting: list[tuple[_socket.socket, Destination]] = []
        self._opens_waiting = False
        self._context = connection.Context(
            check=check,
            loop=self._loop,
            lookups=host_lookups.Lookups(self._loop, lookup),
            pipes=splice.Pipes(),
            dial_budget=budgets.DialBudget(),
            timeouts=timeouts,
            ended=self._ended,
            is_crowded=lambda: len(self._connections) > connection.MANY_CONNECTIONS,
        )
        self._inputs = event_loop.Inputs(self._loop)
        self._listeners = [_socket.socket(fileno=fd) for fd in listeners]
        for listener in self._listeners:
            self._inputs.add(listener, self._accept)

    def traffic(self) -> Mapping[str, Traffic]:
        """Return the traffic to each host, without the connections that are still open."""
        return dict(self._traffic)

    def close(self) -> None:
        for listener in self._listeners:
            self._inputs.close(listener)
        while self._waiting:
            self._waiting.pop()[0].close()
        until = time.monotonic() + splice.LAST_SECONDS
        for opened in list(self._connections):
            opened.finish(until)
        self.dns_server.close()
        self._packets.close()
        self._context.lookups.close()
        self._context.pipes.close()
        self._loop.close()

    def _accept(self, listener: _socket.socket) -> None:
        for _ in range(MAX_ACCEPTED):
            if self._is_full():
                self._inputs.stop()
                return
            if seconds := self._rate_limit.pause_seconds():
                # Too many connections were denied or have failed. Accept no more for a while, so
                # that a flood of such connections does not keep the supervisor busy.
                self._inputs.pause(seconds)
                return
            client = self._inputs.accept(listener)
            if client is None:
                return
            self._start(client)

    def _start(self, client: _socket.socket) -> None:
        try:
            host, port = client.getsockname()[:2]
            address = unmap(parse_address(str(host).partition("%")[0]))
        except (OSError, ValueError):
            client.close()
            return
        destination = self.find_destination(address, int(port))
        if destination is None:
            close_socket(client, reset=True)
        else:
            self._open(client, destination)

    def find_destination(self, address: bytes, port: int) -> Destination | None:
        """Return the destination of a connection to an address, or None if the destination is
        denied.
        """
        destination = self.names.destination(address, port)
        if self._context.check.allows(destination):
            return destination
        self._rate_limit.use()
        return None

    def admit(self, client: _socket.socket, destination: Destination) -> None:
        """Handle a connection to a destination that `find_destination` returned.

        If too many connections are open, the new connection waits until another connection ends. If
        MAX_WAITING connections are waiting already, the new connection is reset.
        """
        if not self._is_full():
            self._open(client, destination)
        elif len(self._waiting) < MAX_WAITING:
            self._waiting.append((client, destination))
        else:
            close_socket(client, reset=True)

    def _is_full(self) -> bool:
        if len(self._connections) < self._max_connections:
            return False
        self.denials.add("limit", f"more than {self._max_connections} connections")
        return True

    def _open(self, client: _socket.socket, destination: Destination) -> None:
        opened = connection.Connection(self._context, client, destination)
        self._connections.add(opened)
        opened.start()

    def _ended(self, opened: connection.Connection) -> None:
        self._connections.discard(opened)
        copy = opened.copy
        up, down = (copy.up.moved, copy.down.moved) if copy else (0, 0)
        if not up + down:
            self._rate_limit.use()
        host = opened.destination.host
        count_connection(self._traffic, host, failed=copy is None, up=up, down=down)
        self._open_waiting()
        self._inputs.start()

    def _open_waiting(self) -> None:
        """Open waiting connections until the maximum number of connections is reached.

        A connection that fails at once calls this method again, through `_ended`. The inner call
        returns at once, because hundreds of nested calls could overflow the stack.
        """
        if self._opens_waiting:
            return
        self._opens_waiting = True
        try:
            while self._waiting and len(self._connections) < self._max_connections:
                self._open(*self._waiting.pop(0))
        finally:
            self._opens_waiting = False
