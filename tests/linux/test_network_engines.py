"""Compare the two network engines, gateway (Linux) and proxy (macOS). Both get the same policy and
the same results of DNS lookups, and use real sockets.

Both must allow the same connections, record the same denials, and agree with corral's check of
destinations, which tests/unit/network/test_destinations.py tests. The gateway answers lookups with
synthetic addresses, which stand for names. They are in 127.77.0.0/16, so that clients reach the
gateway without a network namespace.
"""

import contextlib
import select
import socket
import ssl
import time

import pytest

from corral.denials.records import Denials
from corral.network.addresses import parse_address, parse_network
from corral.network.budgets import Timeouts
from corral.network.destinations import Destination, DestinationCheck, address_destination
from corral.network.gateway.gateway import Gateway
from corral.network.http_proxy.outbound import Outbound
from corral.network.http_proxy.server import HttpProxy
from corral.network.rules import parse_rules
from corral.network.tls_hello import HelloReader
from flags import entry

LOCAL = "127.0.0.1"
SYNTHETIC = "127.77.0.0/16"
NAME = "server.example"
PLAIN = b"not a hello\r\n"
PATIENCE = 60


def hello(name):
    """Return the first bytes that a real TLS client sends."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


class Case:
    """A request of a target, and its expected result.

    `allow` is the allowlist, and `found` is what the DNS lookup returns. `reached` says whether the
    request reaches the server, and `rows` are the denials that corral records. In `allow` and
    `rows`, `{}` stands for the server's port.
    """

    def __init__(self, *, allow, host=NAME, found=(LOCAL,), admit=(LOCAL,), own=(), tls=False, first=PLAIN,
                 reached=False, rows=()):  # fmt: skip
        self.allow, self.host, self.found, self.admit, self.own = allow, host, found, admit, own
        self.tls, self.first, self.reached, self.rows = tls, first, reached, rows

    def check(self, port):
        return DestinationCheck(
            parse_rules(text.format(port) for text in self.allow),
            Denials(),
            admitted=map(parse_network, self.admit),
            host_addresses=set(map(parse_address, self.own)),
            tls_ports=frozenset({port}) if self.tls else frozenset(),
            synthetic=(parse_network(SYNTHETIC),),
        )

    def lookup(self, _name):
        return list(map(parse_address, self.found))

    def expected(self, port):
        return self.reached, [tuple(text.format(port) for text in row) for row in self.rows]


GUARDED = (f"{NAME} ({LOCAL}:{{}})", f"{LOCAL}:{{}}", "loopback")
CASES = {
    "allowed": Case(allow=[NAME + ":{}"], reached=True),
    "another port": Case(allow=[NAME + ":1"], rows=[("port", NAME + ":{}", NAME + ":{}", "")]),
    "guarded": Case(allow=[NAME + ":{}"], admit=(), rows=[("guard", *GUARDED)]),
    "named by the policy": Case(allow=[NAME + ":{}", LOCAL + ":{}"], admit=(), reached=True),
    "named at another port": Case(allow=[NAME + ":{}", LOCAL + ":1"], admit=(), rows=[("guard", *GUARDED)]),
    "everywhere is not here": Case(allow=[NAME + ":{}", "0.0.0.0/0:{}"], admit=(), rows=[("guard", *GUARDED)]),
    "one of two": Case(
        allow=[NAME + ":{}"], found=("10.0.0.1", LOCAL), reached=True,
        rows=[("guard", f"{NAME} (10.0.0.1:{{}})", "10.0.0.1:{}", "private")],
    ),
    "mapped": Case(allow=[NAME + ":{}"], found=("::ffff:" + LOCAL,), reached=True),
    "mapped and guarded": Case(allow=[NAME + ":{}"], found=("::ffff:" + LOCAL,), admit=(), rows=[("guard", *GUARDED)]),
    "carried": Case(
        allow=[NAME + ":{}"], found=("64:ff9b::10.0.0.1",),
        rows=[("guard", f"{NAME} ([64:ff9b::a00:1]:{{}})", "10.0.0.1:{}", "it contains an IPv4 address: private")],
    ),
    "metadata": Case(
        allow=[NAME + ":{}"], found=("169.254.169.254",), admit=("169.254.0.0/16",),
        rows=[("guard", f"{NAME} (169.254.169.254:{{}})", "169.254.169.254:{}", "metadata")],
    ),
    "never": Case(
        allow=[NAME + ":{}", "0.0.0.0:{}"], found=("0.0.0.0",), admit=("0.0.0.0",),
        rows=[("guard", f"{NAME} (0.0.0.0:{{}})", "", "unspecified")],
    ),
    "the host's own": Case(
        allow=[NAME + ":{}"], found=("8.8.8.8",), own=("8.8.8.8",),
        rows=[("guard", f"{NAME} (8.8.8.8:{{}})", "8.8.8.8:{}", "the host's own address")],
    ),
    "no address": Case(
        allow=[NAME + ":{}"], found=(),
        rows=[("unreachable", NAME + ":{}", "", "the host found no address for it")],
    ),
    "an address": Case(allow=[NAME + ":{}"], host="127.6.0.1", rows=[("address", "127.6.0.1:{}", "127.6.0.1:{}", "")]),
    "an allowed address that is guarded": Case(
        allow=["0.0.0.0/0:{}"], host="127.6.0.1", admit=(), rows=[("guard", "127.6.0.1:{}", "127.6.0.1:{}", "loopback")],
    ),
    "a synthetic address of no name": Case(
        allow=[NAME + ":{}"], host="127.77.0.9", rows=[("address", "127.77.0.9:{}", "", "no name has this address")],
    ),
    "a hello": Case(allow=[NAME + ":{}"], tls=True, first=hello(NAME), reached=True),
    "a hello without a name": Case(allow=[NAME + ":{}"], tls=True, first=hello(None), reached=True),
    "no hello": Case(allow=[NAME + ":{}"], tls=True, reached=True),
    "a hello for another": Case(
        allow=[NAME + ":{}"], tls=True, first=hello("evil.example"),
        rows=[("sni", "evil.example", "evil.example:{}", f"connected to {NAME}")],
    ),
    "a hello that cannot be read": Case(
        allow=[NAME + ":{}"], tls=True, first=b"\x16\x03\x01\x00\x05\x02junk",
        rows=[("sni", "something that cannot be read", "", f"connected to {NAME}")],
    ),
}  # fmt: skip


def through_gateway(case, check, server, port, stack):
    address = case.host if case.host[0] == "1" else "127.77.0.1"
    listener = socket.create_server((address, port))
    gateway = Gateway(check, listeners=[listener.detach()], lookup=case.lookup)
    stack.callback(gateway.close)
    if address != case.host:
        gateway.names.assign_address(case.host)
    client = stack.enter_context(socket.create_connection((address, port)))
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        client.sendall(case.first)
    return is_answered(client, server, gateway)


def through_proxy(case, check, server, port, stack):
    listener = socket.create_server((LOCAL, 0))
    where = listener.getsockname()
    proxy = HttpProxy(listener, b"word", Outbound(check, lookup=case.lookup, timeouts=Timeouts()))
    stack.callback(proxy.close)
    client = stack.enter_context(socket.create_connection(where, timeout=PATIENCE))
    client.sendall(
        f"CONNECT {case.host}:{port} HTTP/1.1\r\nProxy-Authorization: word\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    if not head.startswith(b"HTTP/1.1 200"):
        assert head.split()[1] in {b"403", b"502"}
        return False
    client.sendall(case.first)
    return is_answered(client, server, None)


def is_answered(client, server, gateway):
    """Run the engine until the client is answered or refused, and return whether it was answered.
    The server answers only after it has received data.
    """
    deadline = time.monotonic() + PATIENCE
    waiting = [client, server, *([gateway] if gateway else [])]
    while True:
        ready = select.select(waiting, [], [], max(0, deadline - time.monotonic()))[0]
        assert ready, "no socket became ready"
        if gateway in ready:
            gateway.run_ready()
        if server in ready:
            reached, _ = server.accept()
            with reached:
                while gateway and not select.select([reached], [], [], 0)[0]:
                    select.select([gateway, reached], [], [])
                    gateway.run_ready()
                # The proxy connects before it sees the TLS hello. If the hello is denied, the proxy
                # passes on no data.
                if reached.recv(1 << 16):
                    reached.sendall(b"answer")
        if client in ready:
            try:
                return client.recv(6) == b"answer"
            except ConnectionResetError:
                return False


def directly(case, check, port):
    """Return whether the destination check allows a case, without an engine or a server."""
    try:
        destination = address_destination(parse_address(case.host), port)
    except ValueError:
        destination = Destination(host=case.host, port=port)
    if not check.allows(destination):
        return False
    if check.needs_hello(destination):
        allowed = check.allows_hello(HelloReader().feed(case.first), destination)
        assert allowed is not None
        if not allowed:
            return False
    found = case.lookup(case.host) if destination.address is None else [destination.address]
    return bool(check.filter_addresses(destination, found))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("engine", ["directly", "gateway", "proxy"])
def test_the_check_the_gateway_and_the_proxy_agree(engine, case):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server((LOCAL, 0)))
        port = server.getsockname()[1]
        check = case.check(port)
        if engine == "directly":
            reached = directly(case, check, port)
        elif engine == "gateway":
            reached = through_gateway(case, check, server, port, stack)
        else:
            reached = through_proxy(case, check, server, port, stack)
        rows = [
            (row.kind, row.destination, entry(row.allow), row.why) for row in check.denials.rows()
        ]
        assert (reached, rows) == case.expected(port)
