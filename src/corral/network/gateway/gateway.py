"""The gateway of an allowlist run: accepts the target's connections, checks, dials and copies.

It is part of the supervisor, outside the sandbox. Its listeners are in the target's network
namespace, where every address leads to them; the local address of an accepted socket is where the
target wanted to go. Nothing that the target sends is used as an address.

    gateway = Gateway(DestinationCheck(...), listeners=[...], dns_udp=..., dns_tcp=...)
    poll(gateway.fileno(), until gateway.deadline()) -> gateway.run_ready(); gateway.close()
"""

import _socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from corral.network import budgets
from corral.network.addresses import parse_address, unmap
from corral.network.destinations import DestinationCheck
from corral.network.gateway import connection, dns_server, event_loop, host_lookups, splice
from corral.network.gateway.dns_names import Names
from corral.network.sockets import close_socket, look_up_addresses
from corral.network.traffic import Traffic, count_connection

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

MAX_CONNECTIONS = 512
MAX_ACCEPTED = 16
"""Connections accepted before others get their turn."""
MAX_FAILED = 256
"""Connections that carry nothing, at once and then a second: refused ones, and empty ones."""
OTHER_DESCRIPTORS = 128
"""For the supervisor itself, DNS clients and lookups."""


class Gateway:
    """Takes over the descriptors that it is given, and closes them with itself."""

    def __init__(
        self,
        check: DestinationCheck,
        *,
        listeners: Sequence[int],
        dns_udp: int = -1,
        dns_tcp: int = -1,
        lookup: host_lookups.Lookup = look_up_addresses,
        timeouts: budgets.Timeouts = budgets.Timeouts(),  # noqa: B008 - records are frozen
        max_connections: int = MAX_CONNECTIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.denials = check.denials
        self.names = Names(check)
        others = 2 * splice.MAX_PIPES + budgets.MAX_EXTRA_DIALS + OTHER_DESCRIPTORS
        self._max_connections = budgets.reserve_descriptors(max_connections, others=others)
        self._loop = loop = event_loop.Loop(clock)
        self.fileno, self.deadline, self.run_ready = loop.fileno, loop.deadline, loop.run_ready
        self._rate_limit = budgets.RateLimit(clock, burst=MAX_FAILED, rate=MAX_FAILED)
        self._dns_server = dns_server.DnsServer(self._loop, self.names, udp=dns_udp, tcp=dns_tcp)
        self._traffic: dict[str, Traffic] = {}
        self._connections: set[connection.Connection] = set()
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
        """Return the traffic of connections that have ended, by host."""
        return dict(self._traffic)

    def close(self) -> None:
        for listener in self._listeners:
            self._inputs.close(listener)
        for opened in list(self._connections):
            opened.close(reset=True)
        self._dns_server.close()
        self._context.lookups.close()
        self._context.pipes.close()
        self._loop.close()

    def _accept(self, listener: _socket.socket) -> None:
        for _ in range(MAX_ACCEPTED):
            if len(self._connections) >= self._max_connections:
                self.denials.add("limit", f"more than {self._max_connections} connections")
                self._inputs.stop()
                return
            if seconds := self._rate_limit.pause_seconds():
                # A flood of denied connections then costs the target more than the host.
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
        destination = self.names.destination(address, int(port))
        if not self._context.check.allows(destination):
            self._rate_limit.use()
            close_socket(client, reset=True)
            return
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
        self._inputs.start()
