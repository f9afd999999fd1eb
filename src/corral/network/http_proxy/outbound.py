"""Connect an HTTP proxy to the servers that its target wants: look up names, check addresses, dial,
and count connections.

The functions in this module may block, because the proxy has one thread for each connection.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from corral.network.addresses import address_or_none, deduplicate
from corral.network.budgets import DialBudget, RateLimit, Timeouts
from corral.network.destinations import NO_CONNECTION, NO_PROXY, Destination, DestinationCheck
from corral.network.host_proxy import Proxy, build_connect_request, parse_connect_reply
from corral.network.http_proxy import dial
from corral.network.sockets import look_up_addresses
from corral.network.traffic import Traffic, count_connection

MAX_FAILED = 200
"""The rate limit for connections that reach no server: this many at once, and then this many per
second.
"""


class Outbound:
    """Makes and counts the outgoing connections of a proxy. All threads of the proxy share this
    object.
    """

    def __init__(
        self,
        check: DestinationCheck,
        *,
        lookup: Callable[[str], Sequence[bytes]] = look_up_addresses,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - records are frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.check = check
        self.denials = check.denials
        self.timeouts = timeouts
        self._lookup = lookup
        self._lock = threading.Lock()
        self._dial_budget = DialBudget()
        self._traffic: dict[str, Traffic] = {}
        self._stopped = False
        self._rate_limit = RateLimit(clock, burst=MAX_FAILED, rate=MAX_FAILED)

    def traffic(self) -> Mapping[str, Traffic]:
        """Return the traffic to each host, without the connections that are still open."""
        with self._lock:
            return dict(self._traffic)

    def stop_counting(self) -> None:
        """Count no more connections, because the report is about to be written."""
        with self._lock:
            self._stopped = True

    def count(self, host: str, *, failed: bool, up: int = 0, down: int = 0) -> None:
        with self._lock:
            if not self._stopped:
                count_connection(self._traffic, host, failed=failed, up=up, down=down)

    def count_failed(self) -> float:
        """Count a connection that reached no server. Return for how many seconds it still counts as
        one of the proxy's open connections after its end.

        The number of open connections is limited, so this slows down a flood of failing
        connections. The target's CPU limit would not slow it down, because the proxy's CPU time
        does not count as the target's.
        """
        with self._lock:
            self._rate_limit.use()
            return self._rate_limit.pause_seconds()

    def connect(self, destination: Destination) -> socket.socket:
        """Connect directly or through the host's proxy. Raise OSError or ValueError on failure."""
        proxy = self.check.proxy_for(destination)
        if proxy is None:
            return self._connect_directly(destination)
        if destination.address is not None and not self.check.filter_addresses(
            destination, (destination.address,)
        ):
            raise OSError(0, "the address is guarded")
        try:
            server = self._dial(self._find_addresses(proxy.host), proxy.port)
        except OSError:
            self.check.report_unreachable(destination, NO_PROXY)
            raise
        try:
            _ask_proxy(server, proxy, destination, self.timeouts.connect_seconds)
        except BaseException:
            server.close()
            raise
        return server

    def _connect_directly(self, destination: Destination) -> socket.socket:
        found = self._find_addresses(destination.host)
        addresses = self.check.filter_addresses(destination, found)
        try:
            return self._dial(addresses, destination.port)
        except OSError:
            if addresses:
                self.check.report_unreachable(destination, NO_CONNECTION)
            raise

    def _find_addresses(self, host: str) -> Sequence[bytes]:
        address = address_or_none(host)
        return deduplicate(self._lookup(host)) if address is None else (address,)

    def _dial(self, addresses: Sequence[bytes], port: int) -> socket.socket:
        server = dial.connect(
            addresses, port, timeout_seconds=self.timeouts.connect_seconds, budget=self._dial_budget
        )
        server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return server


def _ask_proxy(
    server: socket.socket, proxy: Proxy, destination: Destination, timeout_seconds: float
) -> None:
    server.settimeout(timeout_seconds)
    server.sendall(build_connect_request(proxy, destination.host, destination.port))
    data = b""
    while parse_connect_reply(data) is None:
        # Read single bytes, because the bytes after the proxy's reply are for the client.
        chunk = server.recv(1)
        if not chunk:
            raise OSError(0, "the host's proxy hung up")
        data += chunk
    server.settimeout(None)
