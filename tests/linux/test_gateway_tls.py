"""Test how the gateway checks TLS hellos, and how it uses the host's proxy."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import ssl
import sys

import pytest
from gateway_process import LOCAL, NAME, OTHER, echo, gateway, is_refused, proxy, server

__all__ = ["gateway", "proxy", "server"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the gateway uses epoll and splice")
TLS = pathlib.Path(__file__).parent.parent / "tls"

# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> str:
    both = tmp_path_factory.mktemp("tls") / "both.pem"
    both.write_bytes(b"".join((TLS / name).read_bytes() for name in ("key.pem", "certificate.pem")))
    return str(both)


@pytest.fixture
def tls_server(server, certificate) -> int:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def answer(connection: socket.socket) -> None:
        with (
            contextlib.suppress(ssl.SSLError),
            context.wrap_socket(connection, server_side=True) as inner,
        ):
            echo(inner)

    return server(answer)


def say_by_tls(
    raw: socket.socket, certificate: str, name: str | None, *, checked: bool = True
) -> bytes:
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = checked
    with context.wrap_socket(raw, server_hostname=name) as client:
        client.sendall(b"secret")
        return client.recv(6)


def test_tls_with_the_allowed_name_passes(gateway, tls_server, certificate):
    running = gateway(tls_server, tls=[tls_server])
    assert say_by_tls(running.connect(NAME, tls_server), certificate, NAME) == b"secret"
    assert (
        say_by_tls(running.connect(NAME, tls_server), certificate, None, checked=False) == b"secret"
    )
    assert running.denials() == []


def test_tls_with_another_name_is_refused(gateway, tls_server, certificate):
    running = gateway(tls_server, tls=[tls_server])
    with pytest.raises((ConnectionResetError, ssl.SSLError)):
        say_by_tls(running.connect(NAME, tls_server), certificate, OTHER)
    assert running.zone.asked == []
    assert running.denials() == [("sni", OTHER, f"{OTHER}:{tls_server}")]


def test_tls_with_another_name_passes_without_the_check(gateway, tls_server, certificate):
    """Sanity check: if the gateway does not check the TLS hello, the connection succeeds."""
    running = gateway(tls_server)
    assert say_by_tls(running.connect(NAME, tls_server), certificate, OTHER) == b"secret"


def test_a_tls_hello_is_read_byte_by_byte(gateway, tls_server, certificate):
    running = gateway(tls_server, tls=[tls_server])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=certificate)
    client = context.wrap_bio(incoming, outgoing, server_hostname=NAME)
    with running.connect(NAME, tls_server) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    raw.send(bytes((byte,)))
                incoming.write(raw.recv(65536))
    assert running.denials() == []


def test_an_unreadable_tls_hello_is_refused(gateway, tls_server):
    running = gateway(tls_server, tls=[tls_server])
    with running.connect(NAME, tls_server) as raw:
        raw.sendall(b"\x16\x03\x01\x00\x05\x02junk")
        with pytest.raises(ConnectionResetError):
            raw.recv(1)
    assert [row[0] for row in running.denials()] == ["sni"]


def test_a_silent_tls_client_is_ended(gateway, tls_server):
    running = gateway(tls_server, tls=[tls_server], timeouts={"request_seconds": 0.2})
    with running.connect(NAME, tls_server) as raw, pytest.raises(ConnectionResetError):
        raw.recv(1)
    assert running.zone.asked == []


# In the next tests the host's environment names a proxy.


def test_connections_go_through_the_hosts_proxy(gateway, server, proxy):
    proxy_port, requests = proxy
    port = server(echo)
    environment = {
        "https_proxy": f"http://me:p%40ss@{LOCAL}:{proxy_port}",
        "NO_PROXY": "intern.example",
    }
    running = gateway(port, environment=environment, admitted=())
    with running.connect(NAME, port) as client:
        client.sendall(b"hello")
        got = b""
        while len(got) < 12:
            got += client.recv(12)
        assert got == b"banner hello"
    assert requests == [
        f"CONNECT {NAME}:{port} HTTP/1.1\r\nHost: {NAME}:{port}\r\n"
        "Proxy-Authorization: Basic bWU6cEBzcw==\r\n\r\n".encode()
    ]
    assert running.zone.asked == []  # the gateway asks no DNS server: the proxy resolves the name


def test_connections_to_excepted_hosts_bypass_the_proxy(gateway, server, proxy):
    proxy_port, requests = proxy
    port = server(echo)
    running = gateway(
        port, environment={"https_proxy": f"{LOCAL}:{proxy_port}", "no_proxy": ".example"}
    )
    assert not is_refused(running, running.address(NAME), port)
    assert requests == []


def test_a_connection_that_the_proxy_refuses_is_refused(gateway, server, proxy):
    proxy_port, requests = proxy
    port = server(echo)
    running = gateway(
        port,
        allow=[f"denied.example:{port}"],
        environment={"https_proxy": f"http://{LOCAL}:{proxy_port}"},
    )
    assert is_refused(running, running.address("denied.example"), port)
    assert len(requests) == 1
