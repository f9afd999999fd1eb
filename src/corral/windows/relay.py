"""Named hosts for a target without any network capability: the outer end of the relay.

The wall is the capability that is missing (`network.py`); this is how honest clients get through
it. Inside the container a shim (`relay_shim.py`) listens on loopback, and `HTTP_PROXY` and
`HTTPS_PROXY` lead there; every connection comes out here through one pair of inherited pipes. What
it asks for is checked as on Linux: the name against the policy, every address that the host finds
for it against the guard, and exactly the address that was checked is dialled. On TLS ports the name
in the client's hello has to be allowed too. A client that ignores the variables reaches nothing.

The shim is a process of its own in the same AppContainer, in a job of its own. It cannot be in the
target's job: there it would count against `pids`, and with subprocess = false the limit of one
process, which is the target's own, is what holds. It cannot be outside the container either:
loopback does not lead out of one. The target may open, read and change the shim, since both are the
same principal to Windows. So nothing is entrusted to it, its job has limits of its own (one
process, `SHIM_MEMORY`, the policy's CPU rate), and all that it can say is frames.

    relay = Relay(reader, writer, rules=..., denials=...)   # the pipes to and from the shim
    port = relay.start()                                    # when the shim listens
    environment |= variables(port)
    relay.close()                                           # after the shim was ended
"""

from __future__ import annotations

import os
import socket
import threading

from corral.network.addresses import plain, read, write
from corral.network.guard import refusal
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
    from corral.plan import Place
    from corral.windows.relay_request import Request
    from corral.windows.relay_shim import Stream

    Lookup = Callable[[str], Sequence[bytes]]

SHIM_MEMORY = 96 << 20
SHIM_START = 20.0
"""Seconds: a cold interpreter on a busy machine, with a virus scanner reading along."""
MOST_HANDLERS = 2 * relay_shim.MOST_STREAMS
"""Connections that are over for the target can still be on their way to a slow server."""
MOST_ADDRESSES = 8
MOST_COUNTED = 1024


@record
class Timing:
    """Seconds. `head`: for a client to say where to; `connect`: for each address to answer."""

    head: float = 10.0
    connect: float = 10.0


@record
class NamedHosts:
    """`python` starts the shim inside: an interpreter that the container can read."""

    allow: tuple[str, ...]
    python: str
    place: Place = "supervisor"

    def describe(self) -> str:
        return f"relay: a proxy on loopback inside, for {', '.join(self.allow)}"


def shim_argv(python: str) -> list[str]:
    """The shim as a command. Its source goes with it, so that no file of corral's is needed."""
    with open(relay_shim.__file__, encoding="utf-8") as file:
        return [python, "-I", "-S", "-c", file.read()]


def variables(port: int) -> dict[str, str]:
    """For the target. Names of variables have no case on Windows: one spelling is all."""
    proxy = f"http://127.0.0.1:{port}"
    return {
        "HTTP_PROXY": proxy,
        "HTTPS_PROXY": proxy,
        "NO_PROXY": "localhost,127.0.0.1,::1",
        "NODE_USE_ENV_PROXY": "1",
    }


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
    ) -> None:
        self.rules = rules
        self.tls_ports = tls_ports
        self.timing = timing
        self._denials = denials
        self._admitted = tuple(admitted)
        self._own = OwnAddresses() if own is None else own
        self._proxy = proxy
        self._lookup = lookup
        self._lock = threading.Lock()
        self._traffic: dict[str, Traffic] = {}
        self._handlers = threading.Semaphore(MOST_HANDLERS)
        self._descriptors = (reader, writer)
        self._greeted = threading.Event()
        self._port = 0
        self._mux = relay_shim.Mux(reader, writer, greeted=self._greet, arrived=self._arrive)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def start(self) -> int:
        """The port inside. OSError if the shim does not come up."""
        self._thread.start()
        if not self._greeted.wait(SHIM_START) or not self._port:
            raise OSError(0, "the relay's inner end did not start")
        return self._port

    def traffic(self) -> Mapping[str, Traffic]:
        """What went where, of connections that have ended."""
        with self._lock:
            return dict(self._traffic)

    def close(self) -> None:
        """Once the shim is gone: the pipe has ended then, and so does whoever reads it."""
        if self._thread.ident is not None:
            self._thread.join()
        for fd in self._descriptors:
            os.close(fd)

    def _run(self) -> None:
        try:
            self._mux.run()
        except relay_shim.ProtocolError as error:
            self.deny("limit", "the relay's pipe", why=f"no frames of ours: {error}")
        finally:
            self._greeted.set()

    def _greet(self, port: int) -> None:
        self._port = port
        self._greeted.set()

    def _arrive(self, stream: Stream) -> None:
        threading.Thread(target=self._handle, args=(stream,), daemon=True).start()

    def _handle(self, stream: Stream) -> None:
        if not self._handlers.acquire(blocking=False):
            _reset(stream)
            return
        try:
            Connection(self, stream).run()
        except (OSError, ValueError):
            _reset(stream)
        finally:
            self._handlers.release()

    def deny(self, kind: Kind, destination: str, *, allow: str = "", why: str = "") -> None:
        with self._lock:
            self._denials.add(kind, destination, allow=allow, why=why)

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
