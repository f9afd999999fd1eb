"""The way out of a sandbox: accept, check, look up, check again, dial, pass bytes on.

It lives in the supervisor, outside. Its listeners are in the target's network namespace, where
every address leads to them; the address of an accepted socket is where the target wanted to go.
Nothing that the target says is taken for an address: it is looked up among what the policy allows.

    gateway = Gateway(rules=..., listeners=[...], dns_udp=..., dns_tcp=..., denials=...)
    poll(gateway.fileno(), until gateway.deadline()) -> gateway.run_ready(); gateway.close()
"""

from __future__ import annotations

import _socket
import sys
import time

from corral.denials import traffic
from corral.network import budgets
from corral.network.addresses import plain, read, write
from corral.network.budgets import MOST_SPARE, Pace, Spare
from corral.network.gateway import connection, dns_server, event_loop, host_lookups, splice
from corral.network.gateway.dns_names import Names
from corral.network.guard import OwnAddresses, can_be_named
from corral.network.rules import SYNTHETIC, written
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from corral.denials.records import Denials
    from corral.denials.traffic import Traffic
    from corral.network.addresses import Network
    from corral.network.gateway.host_lookups import Lookup
    from corral.network.host_proxy import Proxy
    from corral.network.rules import Rules

MOST_CONNECTIONS = 512
ACCEPTED = 16
"""Connections taken before others get their turn."""
IN_VAIN = 256
"""Connections that nothing came of, at once and then a second: refused ones, and empty ones."""
OTHER_DESCRIPTORS = 128
"""What the supervisor itself, DNS clients and lookups may need."""


@record
class Timing:
    """Seconds. `hello`: for a TLS client to say whom it wants. `idle`: with no byte either way."""

    hello: float = 10.0
    connect: float = 15.0
    idle: float = 3600.0


class Gateway:
    """Takes over the descriptors that it is given, and closes them with itself.

    `admitted` are networks of the user's config that the address guard lets names lead to.
    """

    def __init__(
        self,
        *,
        rules: Rules,
        denials: Denials,
        listeners: Sequence[int],
        dns_udp: int = -1,
        dns_tcp: int = -1,
        admitted: Sequence[Network] = (),
        own: Container[bytes] | None = None,
        proxy: Proxy | None = None,
        lookup: Lookup = host_lookups.host_addresses,
        timing: Timing = Timing(),  # noqa: B008 - records are frozen
        most: int = MOST_CONNECTIONS,
        tls_ports: frozenset[int] = frozenset({443}),
        synthetic: Network = SYNTHETIC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rules = rules
        self.denials = denials
        self.names = Names(rules, denials, network=synthetic)
        besides = 2 * splice.MOST_PIPES + MOST_SPARE + OTHER_DESCRIPTORS
        self.most = budgets.room_for(most, besides=besides)
        self._loop = event_loop.Loop(clock)
        self._pace = Pace(clock, burst=IN_VAIN, rate=IN_VAIN)
        self._resting = False
        self._lookups = host_lookups.Lookups(self._loop, lookup)
        self._pipes = splice.Pipes()
        self._resolver = dns_server.Resolver(self._loop, self.names, udp=dns_udp, tcp=dns_tcp)
        self._traffic: dict[str, Traffic] = {}
        self._connections: set[connection.Connection] = set()
        self._surroundings = connection.Surroundings(
            loop=self._loop,
            lookups=self._lookups,
            pipes=self._pipes,
            spare=Spare(),
            rules=rules,
            denials=denials,
            admitted=tuple(admitted),
            own=OwnAddresses() if own is None else own,
            proxy=proxy,
            hello=timing.hello,
            connect=timing.connect,
            idle=timing.idle,
            tls_ports=tls_ports,
            ended=self._ended,
            crowded=lambda: len(self._connections) > connection.MANY,
        )
        self._listeners = [_socket.socket(fileno=fd) for fd in listeners]
        for listener in self._listeners:
            listener.setblocking(False)
        self._accepting = False
        self._accept_again()

    def fileno(self) -> int:
        return self._loop.fileno()

    def deadline(self) -> float | None:
        """When `run_ready` is due though nothing happens (`time.monotonic`); None: never."""
        return self._loop.deadline()

    def run_ready(self) -> None:
        """Do all that can be done without waiting; never raises for what the target does."""
        self._loop.run_ready()

    def traffic(self) -> Mapping[str, Traffic]:
        """What went where, of connections that have ended."""
        return dict(self._traffic)

    def close(self) -> None:
        self._accepting = True  # nothing that ends now makes room for others
        for opened in list(self._connections):
            opened.close(reset=True)
        self._resolver.close()
        self._lookups.close()
        for listener in self._listeners:
            self._loop.forget(listener.fileno())
            listener.close()
        self._pipes.close()
        self._loop.close()

    def _accept_again(self) -> None:
        if not self._accepting and not self._resting:
            self._accepting = True
            for listener in self._listeners:
                self._listen(listener)

    def _listen(self, listener: _socket.socket) -> None:
        self._loop.watch(listener.fileno(), event_loop.IN, lambda _: self._accept(listener))

    def _pause(self) -> None:
        """The target's further connections wait in the kernel, and cost nothing there."""
        self._accepting = False
        for listener in self._listeners:
            self._loop.forget(listener.fileno())

    def _accept(self, listener: _socket.socket) -> None:
        for _ in range(ACCEPTED):
            if len(self._connections) >= self.most:
                self.denials.add("limit", f"more than {self.most} connections", allow="")
                self._pause()
                return
            if rest := self._pace.rest():
                self._rest(rest)
                return
            try:
                client = event_loop.accept(listener)
            except OSError as error:
                if error.errno not in event_loop.GONE:
                    self._rest(event_loop.MOMENT)
                return
            self._begin(client)

    def _rest(self, seconds: float) -> None:
        """A flood of connections that lead nowhere costs whoever makes them more than the host; and
        descriptors that are used up come back.
        """
        self._resting = True
        self._pause()
        self._loop.after(seconds, self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._accept_again()

    def _begin(self, client: _socket.socket) -> None:
        try:
            host, port = client.getsockname()[:2]
            address = plain(read(str(host).partition("%")[0]))
        except (OSError, ValueError):
            client.close()
            return
        opened = connection.Connection(self._surroundings, client)
        self._connections.add(opened)
        place = self._place(address, int(port))
        if place is None:
            opened.close(reset=True)
        else:
            opened.start(place)

    def _place(self, address: bytes, port: int) -> connection.Place | None:
        """Where the target wants to go, if it may; else the denial is recorded."""
        name = self.names.name_of(address)
        if name is not None:
            if self.rules.allows_name(name, port) is not None:
                return connection.Place(host=name, port=port)
            self.denials.add("port", written(name, port), allow=written(name, port))
            return None
        if self.rules.allows_address(address, port) is not None:
            return connection.Place(host=write(address), port=port, address=address)
        text = written(write(address), port)
        if address in self.names.network:
            self.denials.add("address", text, allow="", why="no name has this address")
        else:
            self.denials.add("address", text, allow=text if can_be_named(address) else "")
        return None

    def _ended(self, opened: connection.Connection) -> None:
        self._connections.discard(opened)
        if not opened.carried:
            self._pace.spend()
        if opened.place is not None:
            relay = opened.relay
            up, down = (relay.up.moved, relay.down.moved) if relay else (0, 0)
            host = opened.place.host
            traffic.count(self._traffic, host, failed=relay is None, up=up, down=down)
        self._accept_again()
