"""One connection of the target, from the moment it is accepted to its end.

Each stage calls the next when it is done: the TLS hello where there must be one, the lookup, the
address guard, the call, the proxy's answer where there is a proxy, the relay.
"""

from __future__ import annotations

import _socket
import sys

from corral.network.addresses import read, write
from corral.network.gateway import dial, event_loop, splice
from corral.network.guard import refusal, remedy
from corral.network.host_proxy import connect_request, read_reply
from corral.network.rules import is_host_name, written
from corral.network.tls_hello import HelloReader
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from corral.denials.records import Denials
    from corral.network.addresses import Network
    from corral.network.budgets import Spare
    from corral.network.gateway.event_loop import Loop, Timer
    from corral.network.gateway.host_lookups import Lookups
    from corral.network.gateway.splice import Pipes, Relay
    from corral.network.host_proxy import Proxy
    from corral.network.rules import Rules

BLOCK = 4096
MANY = 32
RECEIVE_BUFFER = 1 << 18
"""Beyond MANY connections each gets this much of the kernel's memory for what comes back: left to
itself it would give megabytes to each of hundreds that are never read."""


@record
class Place:
    """Where the target may go: a name, or an address (then `host` is its text)."""

    host: str
    port: int
    address: bytes | None = None


@record
class Surroundings:
    """What all connections share."""

    loop: Loop
    lookups: Lookups
    pipes: Pipes
    spare: Spare
    rules: Rules
    denials: Denials
    admitted: tuple[Network, ...]
    own: Container[bytes]
    proxy: Proxy | None
    hello: float
    connect: float
    idle: float
    tls_ports: frozenset[int]
    ended: Callable[[Connection], None]
    crowded: Callable[[], bool]


class Connection:
    def __init__(self, around: Surroundings, client: _socket.socket) -> None:
        self.place: Place | None = None
        self.relay: Relay | None = None
        self._around = around
        self._client = client
        self._server: _socket.socket | None = None
        self._dial: dial.Dial | None = None
        self._timer: Timer | None = None
        self._hello = HelloReader()
        self._reply = b""
        self._closed = False

    @property
    def carried(self) -> int:
        """Bytes that were passed on, either way."""
        return self.relay.up.moved + self.relay.down.moved if self.relay else 0

    def start(self, place: Place) -> None:
        self.place = place
        if place.port not in self._around.tls_ports:
            self._look_up(place)
            return
        self._timer = self._around.loop.after(self._around.hello, self._fail)
        self._around.loop.watch(self._client.fileno(), event_loop.IN, lambda _: self._peek(place))

    def close(self, *, reset: bool) -> None:
        """At any stage. A reset tells the target that this was not an orderly end."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._dial is not None:
            self._dial.cancel()
        if self.relay is not None:
            self.relay.close(reset=reset)
        for end in (self._client, self._server):
            if end is not None and end.fileno() >= 0:
                self._around.loop.forget(end.fileno())
                splice.close(end, reset=reset)
        self._around.ended(self)

    def _fail(self) -> None:
        self.close(reset=True)

    def _peek(self, place: Place) -> None:
        """Read on until it is clear whom the client wants to talk to.

        What is not TLS, or names nobody, goes on: it reaches the allowed host and no other. Who
        says nothing is not let through, or a hello could follow that nobody looks at.
        """
        try:
            chunk = self._client.recv(BLOCK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        hello = self._hello.feed(chunk)
        if not chunk:
            self._fail()
        elif hello.state == "malformed":
            self._deny_hello("something that cannot be read", place)
        elif hello.state == "name" and not self._around.rules.allows_name(hello.name, place.port):
            self._deny_hello(hello.name, place)
        elif hello.state != "incomplete":
            self._around.loop.forget(self._client.fileno())
            self._stop_timer()
            self._look_up(place)

    def _deny_hello(self, wanted: str, place: Place) -> None:
        allow = written(wanted, place.port) if is_host_name(wanted) else ""
        why = f"connected to {place.host}"
        self._around.denials.add("sni", wanted, allow=allow, why=why)
        self._fail()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_up(self, place: Place) -> None:
        proxy = self._around.proxy
        if proxy is not None and proxy.is_for(place.host):
            if place.address is None or self._checked(place, (place.address,)):
                self._ask(proxy.host, lambda found: self._call(found, proxy.port, proxy))
        elif place.address is not None:
            self._resolved(place, (place.address,))
        else:
            self._ask(place.host, lambda found: self._resolved(place, found))

    def _ask(self, name: str, done: Callable[[tuple[bytes, ...]], None]) -> None:
        try:
            address = read(name)
        except ValueError:
            address = b""
        if address:
            done((address,))
            return
        try:
            self._around.lookups.ask(name, done)
        except OSError:
            self._fail()

    def _resolved(self, place: Place, found: tuple[bytes, ...]) -> None:
        if not self._closed:
            self._call(self._checked(place, found), place.port, None)

    def _checked(self, place: Place, found: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Those of the addresses that may be dialled; ends the connection if there are none."""
        around = self._around
        admitted = (*around.rules.named_networks(place.port), *around.admitted)
        good: list[bytes] = []
        for address in found:
            why = refusal(address, own=around.own, admitted=admitted)
            if why is None:
                good.append(address)
                continue
            text = written(write(address), place.port)
            led = text if place.address is not None else f"{place.host} ({text})"
            named = remedy(address, own=around.own, admitted=admitted)
            allow = written(write(named), place.port) if named else ""
            around.denials.add("guard", led, allow=allow, why=why)
        if not good:
            self._fail()
        return tuple(good)

    def _call(self, addresses: tuple[bytes, ...], port: int, proxy: Proxy | None) -> None:
        if self._closed:
            return
        if not addresses:
            self._fail()
            return
        self._dial = dial.Dial(
            self._around.loop,
            addresses,
            port,
            done=lambda server, _why: self._called(server, proxy),
            timeout=self._around.connect,
            spare=self._around.spare,
            receive_buffer=RECEIVE_BUFFER if self._around.crowded() else 0,
        )
        self._dial.start()

    def _called(self, server: _socket.socket | None, proxy: Proxy | None) -> None:
        self._dial = None
        self._server = server
        if server is None:
            self._fail()
        elif proxy is None:
            self._pass_on(server, b"")
        else:
            self._tunnel(server, proxy)

    def _tunnel(self, server: _socket.socket, proxy: Proxy) -> None:
        place = self.place
        if place is None:
            return
        request = connect_request(proxy, place.host, place.port)
        try:
            whole = server.send(request) == len(request)
        except OSError:
            whole = False
        if not whole:
            self._fail()  # the buffer of a new socket is larger than any request
            return
        self._timer = self._around.loop.after(self._around.connect, self._fail)
        self._around.loop.watch(server.fileno(), event_loop.IN, lambda _: self._read_reply(server))

    def _read_reply(self, server: _socket.socket) -> None:
        try:
            chunk = server.recv(BLOCK)
            self._reply += chunk
            reply = read_reply(self._reply)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._fail()
            return
        if reply is None:
            if not chunk:
                self._fail()
            return
        status, rest = reply
        if not 200 <= status < 300:
            self._fail()
            return
        self._stop_timer()
        self._around.loop.forget(server.fileno())
        self._pass_on(server, rest)

    def _pass_on(self, server: _socket.socket, rest: bytes) -> None:
        try:
            for end in (self._client, server):
                # Whoever sent it already decided what belongs together.
                end.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
                end.setsockopt(_socket.SOL_SOCKET, _socket.SO_KEEPALIVE, 1)
        except OSError:
            self._fail()
            return
        self.relay = splice.Relay(
            self._around.loop,
            self._client,
            server,
            pipes=self._around.pipes,
            idle=self._around.idle,
            done=lambda: self.close(reset=False),
            to_server=bytes(self._hello.data),
            to_client=rest,
        )
        self._hello = HelloReader()
        self.relay.start()
