"""Handle one of the target's connections, from accept to close.

A connection goes through these stages: read the client's TLS hello if the port is for TLS, look up
the name, check the addresses with the address guard, dial, read the reply of the host's proxy if
one is used, and copy bytes in both directions.
"""

from __future__ import annotations

import _socket
import sys

from corral.network.addresses import address_or_none
from corral.network.budgets import DialBudget, Timeouts
from corral.network.destinations import NO_CONNECTION, NO_PROXY, Destination, DestinationCheck
from corral.network.gateway import dial, event_loop, host_lookups, splice
from corral.network.host_proxy import Proxy, build_connect_request, parse_connect_reply
from corral.network.sockets import close_socket
from corral.network.tls_hello import HelloReader
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_BYTES = 4096
MANY_CONNECTIONS = 32
RECEIVE_BUFFER = 1 << 18
"""The size of the receive buffer of a server's socket if there are more than MANY_CONNECTIONS
connections. The kernel's default buffer can grow to several megabytes, which is too much if a
target opens hundreds of connections without reading from them.
"""


@record
class Context:
    """The objects that all connections of a gateway share."""

    check: DestinationCheck
    loop: event_loop.Loop
    lookups: host_lookups.Lookups
    pipes: splice.Pipes
    dial_budget: DialBudget
    timeouts: Timeouts
    ended: Callable[[Connection], None]
    is_crowded: Callable[[], bool]


class Connection:
    def __init__(self, context: Context, client: _socket.socket, destination: Destination) -> None:
        self.destination = destination
        self.copy: splice.SplicedCopy | None = None
        self._context = context
        self._client = client
        self._server: _socket.socket | None = None
        self._dial: dial.Dial | None = None
        self._timer: event_loop.Timer | None = None
        self._hello = HelloReader()
        self._reply = b""
        self._closed = False

    def start(self) -> None:
        if self._context.check.needs_hello(self.destination):
            self._start_timer(self._context.timeouts.request_seconds)
            self._context.loop.watch(
                self._client.fileno(), event_loop.IN, lambda _: self._read_hello()
            )
        else:
            self._look_up()

    def finish(self, until: float) -> None:
        """End the connection at the end of the run. If it has reached the server, first pass on
        what the target and the server have already sent.
        """
        if self.copy is not None:
            self.copy.finish(until)  # calls `close`
        self.close(reset=True)

    def close(self, *, reset: bool) -> None:
        """End the connection in any stage. With `reset`, the target and the server get a TCP reset
        instead of an orderly end.
        """
        if self._closed:
            return
        self._closed = True
        self._stop_timer()
        if self._dial is not None:
            self._dial.cancel()
        if self.copy is not None:
            self.copy.close(reset=reset)
        for end in (self._client, self._server):
            if end is not None and end.fileno() >= 0:
                self._context.loop.forget(end.fileno())
                close_socket(end, reset=reset)
        self._context.ended(self)

    def _fail(self) -> None:
        self.close(reset=True)

    def _start_timer(self, seconds: float) -> None:
        self._timer = self._context.loop.after(seconds, self._fail)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read_hello(self) -> None:
        """Read the client's TLS hello. Start the lookup once the hello is complete and allowed."""
        try:
            chunk = self._client.recv(BLOCK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        allowed: bool | None = False
        if chunk:
            hello = self._hello.feed(chunk)
            allowed = self._context.check.allows_hello(hello, self.destination)
        if allowed:
            self._context.loop.forget(self._client.fileno())
            self._stop_timer()
            self._look_up()
        elif allowed is not None:
            self._fail()

    def _look_up(self) -> None:
        check, destination = self._context.check, self.destination
        proxy = check.proxy_for(destination)
        if proxy is None:
            self._find_addresses(
                destination.host,
                lambda found: self._connect(
                    check.filter_addresses(destination, found), destination.port, None
                ),
            )
        elif destination.address is None or check.filter_addresses(
            destination, (destination.address,)
        ):
            self._find_addresses(proxy.host, lambda found: self._connect(found, proxy.port, proxy))
        else:
            self._fail()

    def _find_addresses(self, host: str, done: Callable[[tuple[bytes, ...]], None]) -> None:
        """Call `done` with the addresses of a host, unless the connection has ended in the
        meantime.
        """
        address = address_or_none(host)
        if address is not None:
            done((address,))
            return
        try:
            self._context.lookups.ask(host, lambda found: None if self._closed else done(found))
        except OSError:
            self._fail()

    def _connect(self, addresses: tuple[bytes, ...], port: int, proxy: Proxy | None) -> None:
        if not addresses:
            self._fail()
            return
        self._dial = dial.Dial(
            self._context.loop,
            addresses,
            port,
            done=lambda server: self._connected(server, proxy),
            timeout_seconds=self._context.timeouts.connect_seconds,
            budget=self._context.dial_budget,
            receive_buffer=RECEIVE_BUFFER if self._context.is_crowded() else 0,
        )
        self._dial.start()

    def _connected(self, server: _socket.socket | None, proxy: Proxy | None) -> None:
        self._dial = None
        self._server = server
        if server is None:
            self._context.check.report_unreachable(
                self.destination, NO_PROXY if proxy else NO_CONNECTION
            )
            self._fail()
        elif proxy is None:
            self._start_copy(server, b"")
        else:
            self._ask_proxy(server, proxy)

    def _ask_proxy(self, server: _socket.socket, proxy: Proxy) -> None:
        request = build_connect_request(proxy, self.destination.host, self.destination.port)
        try:
            whole = server.send(request) == len(request)
        except OSError:
            whole = False
        if not whole:
            # The send buffer of a new connection is empty, so the whole request fits into it. If it
            # was not sent, the connection must be broken.
            self._fail()
            return
        self._start_timer(self._context.timeouts.connect_seconds)
        self._context.loop.watch(server.fileno(), event_loop.IN, lambda _: self._read_reply(server))

    def _read_reply(self, server: _socket.socket) -> None:
        try:
            chunk = server.recv(BLOCK_BYTES)
            self._reply += chunk
            rest = parse_connect_reply(self._reply)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._fail()
            return
        if rest is not None:
            self._stop_timer()
            self._context.loop.forget(server.fileno())
            self._start_copy(server, rest)
        elif not chunk:
            self._fail()

    def _start_copy(self, server: _socket.socket, from_server: bytes) -> None:
        try:
            for end in (self._client, server):
                # Turn off Nagle's algorithm, because the sender has already decided which bytes to
                # send together.
                end.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
                end.setsockopt(_socket.SOL_SOCKET, _socket.SO_KEEPALIVE, 1)
        except OSError:
            self._fail()
            return
        self.copy = splice.SplicedCopy(
            self._context.loop,
            self._client,
            server,
            pipes=self._context.pipes,
            idle_seconds=self._context.timeouts.idle_seconds,
            done=lambda: self.close(reset=False),
            to_server=bytes(self._hello.data),
            to_client=from_server,
        )
        self._hello = HelloReader()
        self.copy.start()
