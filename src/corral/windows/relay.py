"""Named hosts for a target without any network capability: the outer end of the relay.

The wall is the capability that is missing (`network.py`); this is how honest clients get through
it. Inside the container a shim (`relay_shim.py`) listens on loopback, and `HTTP_PROXY` and
`HTTPS_PROXY` lead there; every connection comes out here through one pair of inherited pipes. What
it asks for is checked as on Linux: the name against the policy, every address that the host finds
for it against the guard, and exactly the address that was checked is dialled. On TLS ports the name
in the client's hello has to be allowed too. A client that ignores the variables reaches nothing.

Where the shim runs and why is told in `relay_start.py`. Nothing is entrusted to it.

    relay = Relay(reader, writer, rules=..., denials=...)   # the pipes to and from the shim
    relay.close()                                           # after the shim was ended
"""

from __future__ import annotations

import os
import socket
import threading
import time

from corral.network.addresses import plain, read, write
from corral.network.guard import refusal
from corral.network.pace import Pace
from corral.network.proxy import connect_request, read_reply
from corral.network.traffic import Traffic
from corral.record import record
from corral.windows import relay_shim
from corral.windows.relay_connection import Connection
from corral.windows.relay_request import written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from corral.network.addresses import Network
    from corral.network.denials import Denials, Kind
    from corral.network.proxy import Proxy
    from corral.network.rules import Rules
    from corral.windows.relay_request import Request
    from corral.windows.relay_shim import Stream

    Lookup = Callable[[str], Sequence[bytes]]

MOST_HANDLERS = 2 * relay_shim.MOST_STREAMS
"""Connections that are over for the target can still be on their way to a slow server."""
IN_VAIN = 200
"""Connections a second that may lead nowhere."""
MOST_ADDRESSES = 8
LAST_BREATH = 5.0
MOST_COUNTED = 1024


@record
class Timing:
    """Seconds. `head`: for a client to say where to; `connect`: for each address to answer."""

    head: float = 10.0
    connect: float = 10.0


def host_addresses(name: str) -> list[bytes]:
    """What this host says the name's addresses are, in the order it would try them; blocks."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    addresses = [read(str(item[4][0]).partition("%")[0]) for item in found]
    return list(dict.fromkeys(map(plain, addresses)))


class OwnAddresses:
    """The addresses of this host: it sends from the very address that it is to reach."""

    def __contains__(self, address: object) -> bool:
        if not isinstance(address, bytes):
            return False
        try:
            with socket.socket(_family(address), socket.SOCK_DGRAM) as end:
                # Looks up a route; nothing is sent.
                end.connect((write(address), 9))
                return read(str(end.getsockname()[0]).partition("%")[0]) == address
        except OSError:
            return False


class Relay:
    """Takes over both descriptors. Threads wait here and nowhere else; none outlives the pipes."""

    def __init__(
        self,
        reader: int,
        writer: int,
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
        self._traffic: dict[str, Traffic] = {}
        self._handlers = threading.Semaphore(MOST_HANDLERS)
        self._pace = Pace(clock, burst=IN_VAIN, rate=IN_VAIN)
        self._descriptors = (reader, writer)
        self._mux = relay_shim.Mux(reader, writer, arrived=self._arrive)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """There is nothing to wait for from outside: it has threads of its own."""
        return -1

    def deadline(self) -> float | None:
        return None

    def run_ready(self) -> None:
        """Never anything."""

    def traffic(self) -> Mapping[str, Traffic]:
        """What went where, of connections that have ended."""
        with self._lock:
            return dict(self._traffic)

    def close(self) -> None:
        """Once the shim is gone: the pipe has ended then, and so has whoever reads it."""
        self._thread.join(LAST_BREATH)
        if not self._thread.is_alive():
            for fd in self._descriptors:
                os.close(fd)

    def _run(self) -> None:
        try:
            self._mux.run()
        except relay_shim.ProtocolError as error:
            self.deny("limit", "the relay's pipe", why=f"no frames of ours: {error}")

    def _arrive(self, stream: Stream) -> None:
        # With all of them busy half have no stream any more, and end without what comes by pipe.
        self._handlers.acquire()
        threading.Thread(target=self._handle, args=(stream,), daemon=True).start()

    def _handle(self, stream: Stream) -> None:
        connection = Connection(self, stream)
        try:
            connection.run()
        except (OSError, ValueError):
            _reset(stream)
        finally:
            if not connection.served:
                self._rest()
            self._handlers.release()

    def _rest(self) -> None:
        """The answer costs time that no limit of the target's counts: a flood is heard at a rate.

        Whoever asked was answered before; it is the handler that is missing to the next ones.
        """
        with self._lock:
            self._pace.spend()
            rest = self._pace.rest()
        time.sleep(rest)

    def deny(self, kind: Kind, destination: str, *, allow: str = "", why: str = "") -> None:
        with self._lock:
            self.denials.add(kind, destination, allow=allow, why=why)

    def count(self, host: str, *, failed: bool, up: int = 0, down: int = 0) -> None:
        with self._lock:
            if host not in self._traffic and len(self._traffic) >= MOST_COUNTED:
                host = ""  # all others
            before = self._traffic.get(host, Traffic())
            self._traffic[host] = Traffic(
                connections=before.connections + 1,
                failed=before.failed + failed,
                up=before.up + up,
                down=before.down + down,
            )

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
            self.deny(kind, written(host, port), allow=written(host, port))
        return good

    def dial(self, request: Request) -> socket.socket:
        """Connected to the host, directly or through the user's own proxy; OSError."""
        proxy = self._proxy
        if proxy is None or not proxy.is_for(request.host):
            return self._call(self._checked(request), request.port)
        if request.address is not None:
            self._checked(request)
        server = self._call(self._addresses(proxy.host), proxy.port)
        try:
            _tunnel(server, proxy, request)
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
            allow = written(write(address), request.port)
            led = allow if request.address is not None else f"{request.host} ({allow})"
            self.deny("guard", led, allow=allow, why=why)
        return good

    def _call(self, addresses: Sequence[bytes], port: int) -> socket.socket:
        failed = OSError("no address")
        for address in addresses:
            end = socket.socket(_family(address), socket.SOCK_STREAM)
            try:
                end.settimeout(self.timing.connect)
                end.connect((write(address), port))
                end.settimeout(None)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            except OSError as error:
                failed = error
                end.close()
            else:
                return end
        raise failed


def _reset(stream: Stream) -> None:
    try:
        stream.reset()
    except OSError:
        pass  # the pipe is gone


def _family(address: bytes) -> int:
    return socket.AF_INET if len(address) == 4 else socket.AF_INET6


def _tunnel(server: socket.socket, proxy: Proxy, request: Request) -> None:
    server.settimeout(10)
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
    if reply[0] != 200:
        raise OSError(0, f"the host's proxy answered {reply[0]}")
    server.settimeout(None)
