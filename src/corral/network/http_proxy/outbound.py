"""What an HTTP proxy of corral's may reach for a target: asked, checked, dialled and counted.

The name against the policy, every address that the host finds for it against the guard, and exactly
an address that was checked is dialled. For proxies with a thread a connection, which is where
names can be looked up and calls be waited for.
"""

from __future__ import annotations

import socket
import threading
import time

from corral.denials import traffic
from corral.network.addresses import plain, read, write
from corral.network.budgets import Pace, Spare
from corral.network.guard import OwnAddresses, can_be_named, refusal, remedy
from corral.network.host_proxy import connect_request, read_reply
from corral.network.http_proxy import dial as race
from corral.network.rules import written
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from corral.denials.records import Denials, Kind
    from corral.denials.traffic import Traffic
    from corral.network.addresses import Network
    from corral.network.host_proxy import Proxy
    from corral.network.http_proxy.request import Request
    from corral.network.rules import Rules

    Lookup = Callable[[str], Sequence[bytes]]

IN_VAIN = 200
"""Connections a second that may lead nowhere."""
MOST_ADDRESSES = 16


@record
class Timing:
    """Seconds. `head`: for a client to say where to; `connect`: for one of the addresses to answer.
    `idle`: with no byte either way.
    """

    head: float = 10.0
    connect: float = 15.0
    idle: float = 3600.0


def host_addresses(name: str) -> list[bytes]:
    """What this host says the name's addresses are, in the order it would try them; blocks."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    addresses = [read(str(item[4][0]).partition("%")[0]) for item in found]
    return list(dict.fromkeys(map(plain, addresses)))


class Outbound:
    """For many threads at once."""

    def __init__(
        self,
        *,
        rules: Rules,
        denials: Denials,
        admitted: Iterable[Network] = (),
        own: Container[bytes] | None = None,
        proxy: Proxy | None = None,
        lookup: Lookup = host_addresses,
        tls_ports: frozenset[int] = frozenset({443}),
        timing: Timing = Timing(),  # noqa: B008 - records are frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rules = rules
        self.denials = denials
        self.tls_ports = tls_ports
        self.timing = timing
        self._admitted = tuple(admitted)
        self._own = OwnAddresses() if own is None else own
        self._proxy = proxy
        self._lookup = lookup
        self._lock = threading.Lock()
        self._over = False
        self._spare = Spare()
        self._traffic: dict[str, Traffic] = {}
        self._pace = Pace(clock, burst=IN_VAIN, rate=IN_VAIN)

    def traffic(self) -> Mapping[str, Traffic]:
        """What went where, of connections that have ended."""
        with self._lock:
            return dict(self._traffic)

    def end(self) -> None:
        """Nothing is recorded from here on: a thread may still wait for what answers late."""
        with self._lock:
            self._over = True

    def spend(self) -> float:
        """For a connection that led nowhere: seconds to rest before more may be heard.

        The answer costs time that no limit of the target's counts: a flood is heard at a rate.
        """
        with self._lock:
            self._pace.spend()
            return self._pace.rest()

    def deny(self, kind: Kind, destination: str, *, allow: str = "", why: str = "") -> None:
        with self._lock:
            if not self._over:
                self.denials.add(kind, destination, allow=allow, why=why)

    def count(self, host: str, *, failed: bool, up: int = 0, down: int = 0) -> None:
        with self._lock:
            if not self._over:
                traffic.count(self._traffic, host, failed=failed, up=up, down=down)

    def allows(self, request: Request) -> bool:
        """Else the denial is on record, with the entry that would allow it."""
        host, port, address = request.host, request.port, request.address
        if address is not None:
            good = self.rules.allows_address(address, port) is not None
            kind: Kind = "address"
        else:
            good = self.rules.allows_name(host, port) is not None
            kind = "port" if self.rules.matches(host) else "name"
        if not good:
            place = written(host, port)
            self.deny(kind, place, allow=place if address is None or can_be_named(address) else "")
        return good

    def dial(self, request: Request) -> socket.socket:
        """Connected to the host, directly or through the user's own proxy; OSError."""
        proxy = self._proxy
        if proxy is None or not proxy.is_for(request.host):
            return self._call(self._checked(request), request.port)
        if request.address is not None and not self._checked(request):
            raise OSError(0, "a guarded address")
        server = self._call(self._addresses(proxy.host), proxy.port)
        try:
            _tunnel(server, proxy, request, self.timing.connect)
        except BaseException:
            server.close()
            raise
        return server

    def _addresses(self, host: str) -> Sequence[bytes]:
        try:
            return [read(host)]
        except ValueError:
            return self._lookup(host)

    def _checked(self, request: Request) -> list[bytes]:
        """Those of the host's addresses that may be dialled, the very ones that are dialled."""
        found = self._addresses(request.host)[:MOST_ADDRESSES]
        admitted = (*self.rules.named_networks(request.port), *self._admitted)
        good: list[bytes] = []
        for address in map(plain, found):
            why = refusal(address, own=self._own, admitted=admitted)
            if why is None:
                good.append(address)
                continue
            place = written(write(address), request.port)
            led = place if request.address is not None else f"{request.host} ({place})"
            named = remedy(address, own=self._own, admitted=admitted)
            allow = written(write(named), request.port) if named else ""
            self.deny("guard", led, allow=allow, why=why)
        return good

    def _call(self, addresses: Sequence[bytes], port: int) -> socket.socket:
        server = race.connect(addresses, port, patience=self.timing.connect, spare=self._spare)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return server


def _tunnel(server: socket.socket, proxy: Proxy, request: Request, patience: float) -> None:
    server.settimeout(patience)
    server.sendall(connect_request(proxy, request.host, request.port))
    data = b""
    while True:
        chunk = server.recv(1)  # what follows the answer is the server's, and not ours to keep
        data += chunk
        reply = read_reply(data)
        if reply is not None:
            break
        if not chunk:
            raise OSError(0, "the host's proxy hung up")
    if not 200 <= reply[0] < 300:
        raise OSError(0, f"the host's proxy answered {reply[0]}")
    server.settimeout(None)
