"""Run the real proxy on a port, with real servers and with real clients that have a target's
environment variables. Only the Seatbelt sandbox is missing.
"""

import base64
import contextlib
import itertools
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from web_servers import BODY, LARGE

import rigs
from corral.denials.records import Denials
from corral.network.addresses import parse_network
from corral.network.budgets import Timeouts
from corral.network.destinations import DestinationCheck, check_from_policy
from corral.network.host_proxy import proxy_from_environment
from corral.network.http_proxy import copy, server
from corral.network.http_proxy.outbound import MAX_FAILED, Outbound
from corral.network.rules import parse_rules
from corral.plan.model import Results
from corral.platforms.macos.mechanisms import loopback_proxy as step
from flags import entry

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no poll")
LOOPBACK = (parse_network("127.0.0.0/8"),)
HERE = bytes([127, 0, 0, 1])
NODE = "24.9.0"
"""The version of node in these tests. node has supported NODE_USE_ENV_PROXY since version 24."""


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Give the proxy's threads more time to end, because the machine may be busy."""
    monkeypatch.setattr(server, "CLOSE_SECONDS", 60.0)


class Recorded(Denials):
    """A list of denials that releases the semaphore `seen` for each denial."""

    def __init__(self):
        super().__init__()
        self.seen = threading.Semaphore(0)

    def add(self, *words, **more):
        super().add(*words, **more)
        self.seen.release()


class Closed(threading.Event):
    """Replaces the proxy's `_closed` event. Every pause with a timeout lasts until the proxy is
    closed, but at most 60 seconds.
    """

    def __init__(self):
        super().__init__()
        self.pauses = []
        self.pausing = threading.Semaphore(0)

    def wait(self, timeout=None):
        self.pauses.append(timeout)
        if not timeout:
            return False
        self.pausing.release()
        return super().wait(60)


class Running:
    """A running proxy, opened as a run opens it, with the environment variables that the target
    would get.
    """

    def __init__(self, allow, *, max_connections=server.MAX_CONNECTIONS, **options):
        self.results = Results()
        step.LoopbackProxy(allow=tuple(allow)).apply(self.results)
        self.opened = self.results.get(step.ProxyPort)
        self.port = self.opened.number
        self.variables = self.opened.variables()
        self.word = self.opened.authorization()
        self.asked = []
        self.denials = Recorded()
        self.closed = False
        checked = {
            name: options.pop(name)
            for name in ("admitted", "proxy", "tls_ports")
            if name in options
        }
        check = DestinationCheck(
            parse_rules(allow), self.denials, **{"admitted": LOOPBACK, **checked}
        )
        out = Outbound(check, **{"lookup": self.lookup, **options})
        listener = socket.socket(fileno=self.opened.listener.detach())
        self.proxy = server.HttpProxy(listener, self.word, out, max_connections=max_connections)

    def lookup(self, name):
        self.asked.append(name)
        return [HERE]

    def rows(self):
        return [(row.kind, row.destination, entry(row.allow)) for row in self.denials.rows()]

    def open(self, url):
        proxies = {"http": self.variables["HTTP_PROXY"], "https": self.variables["HTTPS_PROXY"]}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
        try:
            with opener.open(url, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def knock(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def connect(self, host, port, word=None):
        """Open a tunnel with CONNECT. Return the socket and the header of the proxy's answer."""
        end = self.knock()
        word = self.word if word is None else word
        field = b"Proxy-Authorization: " + word + b"\r\n" if word else b""
        end.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n".encode() + field + b"\r\n")
        head = b""
        while not head.endswith(b"\r\n\r\n") and (byte := end.recv(1)):
            head += byte
        return end, head

    def close(self):
        if not self.closed:
            self.closed = True
            self.proxy.close()
            self.denials.close()
            self.results.release()


@pytest.fixture
def run():
    with contextlib.ExitStack() as stack:

        def make(allow, **options):
            made = Running(allow, **options)
            stack.callback(made.close)
            return made

        yield make


def test_an_allowed_name_is_reached_and_another_is_denied(run, web):
    port = web.server_port
    running = run([f"allowed.test:{port}"])
    assert running.open(f"http://allowed.test:{port}/x") == (200, BODY)
    code, text = running.open(f"http://other.test:{port}/x")
    assert (code, b"not in network.allow" in text) == (403, True)
    assert running.open(f"http://allowed.test:{port + 1}/")[0] == 403
    assert running.open(f"http://127.0.0.1:{port}/")[0] == 403
    assert running.rows() == [
        ("name", f"other.test:{port}", f"other.test:{port}"),
        ("port", f"allowed.test:{port + 1}", f"allowed.test:{port + 1}"),
        ("address", f"127.0.0.1:{port}", f"127.0.0.1:{port}"),
    ]
    assert running.asked == ["allowed.test"]  # a denied name is not looked up
    assert web.heads == [("/x", f"allowed.test:{port}", "close")]
    running.close()
    traffic = running.proxy.traffic()
    assert list(traffic) == ["allowed.test"]
    assert traffic["allowed.test"].connections == 1
    assert traffic["allowed.test"].down > len(BODY)


@pytest.mark.parametrize(
    "word",
    [
        b"",
        b"Basic " + base64.b64encode(b"corral:" + b"0" * 32),
        b"Basic " + base64.b64encode(b"corral:"),
        b"Bearer x",
        "ä".encode(),
    ],
)
def test_without_the_password_a_client_learns_nothing(run, web, word):
    port = web.server_port
    running = run([f"allowed.test:{port}"])
    for host in ("allowed.test", "other.test"):
        end, head = running.connect(host, port, word)
        with end:
            assert head.startswith(b"HTTP/1.1 407 ")
            assert b'Proxy-Authenticate: Basic realm="corral"' in head
            assert running.opened.password.encode() not in end.recv(1000)
    # Sanity check: with the password the client is connected.
    end, head = running.connect("allowed.test", port)
    end.close()
    assert head.startswith(b"HTTP/1.1 200 ")
    assert (running.rows(), running.asked, web.heads) == ([], ["allowed.test"], [])


def test_a_password_is_valid_for_one_proxy(run, web):
    port = web.server_port
    one, other = (run([f"allowed.test:{port}"]) for _ in range(2))
    assert one.word != other.word
    end, head = one.connect("allowed.test", port, other.word)
    end.close()
    assert head.startswith(b"HTTP/1.1 407 ")


def test_a_proxy_without_a_password_is_refused(run):
    with socket.socket() as listener, pytest.raises(ValueError):
        server.HttpProxy(listener, b"", Outbound(check_from_policy((), (), {}, None)))


def test_a_name_that_resolves_to_the_host_is_denied_even_if_it_did_not_before(run, web):
    port = web.server_port
    guarded = run([f"allowed.test:{port}"], admitted=())
    assert guarded.open(f"http://allowed.test:{port}/")[0] == 502
    assert guarded.rows() == [("guard", f"allowed.test (127.0.0.1:{port})", f"127.0.0.1:{port}")]
    assert web.heads == []
    answers = [[HERE], [bytes([169, 254, 169, 254])], [bytes(10) + b"\xff\xff" + HERE]]
    moved = run([f"allowed.test:{port}"], lookup=lambda _: answers.pop(0))
    assert moved.open(f"http://allowed.test:{port}/") == (200, BODY)
    assert moved.open(f"http://allowed.test:{port}/")[0] == 502
    # The third lookup returns the allowed IPv4 address again, this time mapped into IPv6.
    assert moved.open(f"http://allowed.test:{port}/") == (200, BODY)
    assert [row[0] for row in moved.rows()] == ["guard"]


def secure(running, tls, certificate, server_name):
    context = ssl.create_default_context(cafile=certificate[0])
    end, head = running.connect("allowed.test", tls.server_port)
    assert head.startswith(b"HTTP/1.1 200")
    with end, context.wrap_socket(end, server_hostname=server_name) as wrapped:
        wrapped.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: wrapped.recv(1 << 16), b""))


def test_a_hello_with_another_name_ends_the_connection(run, tls, certificate):
    port = tls.server_port
    running = run([f"allowed.test:{port}"], tls_ports=frozenset({port}))
    assert secure(running, tls, certificate, "allowed.test").endswith(BODY)
    with pytest.raises(OSError):
        secure(running, tls, certificate, "evil.test")
    assert running.rows() == [("sni", "evil.test", f"evil.test:{port}")]


def client(running, argv, certificate):
    path = {"PATH": os.environ["PATH"], "SSL_CERT_FILE": certificate[0]}
    env = {**path, "NODE_EXTRA_CA_CERTS": certificate[0], **running.variables}
    return subprocess.run(argv, env=env, capture_output=True, check=False, timeout=60)


@pytest.fixture
def both(run, web, tls):
    allow = [f"allowed.test:{web.server_port}", f"allowed.test:{tls.server_port}"]
    running = run(allow, tls_ports=frozenset({tls.server_port}))
    running.urls = [
        f"http://allowed.test:{web.server_port}/",
        f"https://allowed.test:{tls.server_port}/",
    ]
    running.evil = f"https://evil.test:{tls.server_port}/"
    return running


@pytest.mark.rig("curl")
def test_curl_uses_the_proxy_variables(both, certificate):
    for url in both.urls:
        assert client(both, ["curl", "-sS", url], certificate).stdout == BODY
    denied = client(both, ["curl", "-sS", both.evil], certificate)
    assert (denied.returncode != 0, b"403" in denied.stderr) == (True, True)
    assert [row[:2] for row in both.rows()] == [("name", both.evil[8:-1])]


def test_python_uses_the_proxy_variables(both, certificate):
    code = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"
    for url in both.urls:
        done = client(both, [sys.executable, "-c", code, url], certificate)
        assert done.stdout.strip() == BODY, done.stderr
    assert b"403" in client(both, [sys.executable, "-c", code, both.evil], certificate).stderr


@pytest.fixture(scope="module")
def node():
    """Return the path of a node that supports NODE_USE_ENV_PROXY. This node is installed from npm's
    registry and cached for later runs.
    """
    rigs.need("node")
    system = "darwin" if sys.platform == "darwin" else "linux"
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    package = f"node-{system}-{machine}"
    place = rigs.cache(f"{package}-{NODE}")
    found = place / "node_modules" / package / "bin" / "node"
    if not found.exists():
        argv = [
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            str(place),
        ]
        subprocess.run([*argv, f"{package}@{NODE}"], check=True)
    return str(found)


def test_node_uses_the_proxy_variables(both, certificate, node):
    code = "fetch(process.argv[1]).then(r => r.text()).then(console.log, e => console.log('failed', e.cause))"
    for url in both.urls:
        done = client(both, [node, "-e", code, url], certificate)
        assert done.stdout.strip() == BODY, done
    assert b"failed" in client(both, [node, "-e", code, both.evil], certificate).stdout
    assert [row[0] for row in both.rows()] == ["name"]


def test_requests_go_through_the_hosts_own_proxy(run, web):
    """Use a second corral proxy as the host's proxy. It must get the destination's name and not its
    address.
    """
    port = web.server_port
    upstream = run([f"allowed.test:{port}"])
    proxy = proxy_from_environment({"https_proxy": upstream.variables["HTTPS_PROXY"]})
    running = run([f"allowed.test:{port}", "224.0.0.1:80"], proxy=proxy)
    assert running.open(f"http://allowed.test:{port}/") == (200, BODY)
    assert (running.asked, upstream.asked) == ([], ["allowed.test"])
    assert running.open(f"http://other.test:{port}/")[0] == 403
    # The host's proxy never gets an address that the guard refuses, even if the policy names it.
    assert running.open("http://224.0.0.1/")[0] == 502
    assert upstream.rows() == []
    assert [row[0] for row in running.rows()] == ["name", "guard"]


def test_large_bodies_arrive_and_a_client_that_does_not_read_blocks_the_server(run, web):
    port = web.server_port
    running = run([f"allowed.test:{port}"])
    lazy, head = running.connect("allowed.test", port)
    with lazy:
        assert head.startswith(b"HTTP/1.1 200")
        lazy.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert lazy.recv(4) == b"HTTP"  # the client stops reading after the first bytes
        code, body = running.open(f"http://allowed.test:{port}/large")
        assert (code, len(body)) == (200, LARGE)
    data = os.urandom(1 << 20) * 4
    request = urllib.request.Request(f"http://allowed.test:{port}/", data=data)
    assert len(running.open(request)[1]) == 64


def listening(answer):
    listener = socket.create_server(("127.0.0.1", 0))

    def once():
        end, _ = listener.accept()
        with end:
            answer(end)

    thread = threading.Thread(target=once)
    thread.start()
    return listener, thread


def everything(end):
    return b"".join(iter(lambda: end.recv(1 << 16), b""))


def test_half_closed_connections_work(run):
    listener, thread = listening(lambda end: end.sendall(everything(end)[::-1]))
    with listener:
        port = listener.getsockname()[1]
        end, _ = run([f"allowed.test:{port}"]).connect("allowed.test", port)
        with end:
            end.sendall(b"abc")
            end.shutdown(socket.SHUT_WR)
            assert everything(end) == b"cba"
        thread.join()


def aborted(end):
    end.recv(1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_a_broken_connection_of_the_server_is_passed_on(run):
    listener, thread = listening(aborted)
    with listener:
        port = listener.getsockname()[1]
        end, _ = run([f"allowed.test:{port}"]).connect("allowed.test", port)
        with end:
            end.sendall(b"x")
            with pytest.raises(ConnectionResetError):
                end.recv(1)
        thread.join()


def test_a_silent_or_slow_client_times_out(run, web):
    port = web.server_port
    silent = run([f"allowed.test:{port}"], timeouts=Timeouts(request_seconds=0.2))
    with silent.knock() as end, pytest.raises(ConnectionResetError):
        end.recv(1)
    idle = run([f"allowed.test:{port}"], timeouts=Timeouts(idle_seconds=0.2))
    tunnel, head = idle.connect("allowed.test", port)
    assert head.startswith(b"HTTP/1.1 200")
    with tunnel, pytest.raises(ConnectionResetError):
        tunnel.recv(1)
    slow = run([f"allowed.test:{port}"], timeouts=Timeouts(request_seconds=0.2))
    with slow.knock() as end, pytest.raises(OSError):
        while True:  # the client keeps sending bytes, but never a whole request
            end.sendall(b"X")


def test_invalid_requests_get_an_error(run):
    with run(["allowed.test"]).knock() as end:
        end.sendall(b"\x05\x01\x00\r\n\r\n")  # SOCKS
        assert end.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_connections_beyond_the_limit_wait(run, web):
    port = web.server_port
    running = run([f"allowed.test:{port}"], max_connections=4)
    held = [running.connect("allowed.test", port)[0] for _ in range(4)]
    results = []
    url = f"http://allowed.test:{port}/"
    late = threading.Thread(target=lambda: results.append(running.open(url)))
    late.start()
    assert running.denials.seen.acquire(timeout=60)
    assert results == []
    for end in held:
        end.close()
    late.join(60)
    assert results == [(200, BODY)]
    assert running.rows() == [("limit", "more than 4 connections", "")]


def test_many_connections_are_accepted_at_a_limited_rate(run):
    """Stop the clock, so that each connection beyond the rate limit waits until the proxy is
    closed. These connections occupy the proxy's handlers until none is free. The proxy must then
    report a further connection and not answer it.
    """
    running = run(["allowed.test"], max_connections=32, clock=lambda: 0.0)
    running.proxy._closed = closed = Closed()
    for _ in range(MAX_FAILED - 1 + 32):
        end, head = running.connect("other.test", 443)
        end.close()
        assert head.startswith(b"HTTP/1.1 403")
    for _ in range(32):
        assert closed.pausing.acquire(timeout=60)
    while running.denials.seen.acquire(blocking=False):
        pass
    with running.knock() as unheard:
        unheard.sendall(b"nothing\r\n\r\n")
        assert running.denials.seen.acquire(timeout=60)
        assert running.rows()[1] == ("limit", "more than 32 connections", "")
        unheard.setblocking(False)
        with pytest.raises(BlockingIOError):
            unheard.recv(1)
    assert sorted(closed.pauses)[: MAX_FAILED - 1] == [0.0] * (MAX_FAILED - 1)
    assert len(closed.pauses) == MAX_FAILED - 1 + 32
    running.close()  # this ends all pauses
    assert not running.proxy._handlers
    # Sanity check: with a running clock, the proxy serves the same number of connections.
    other = run(["allowed.test"], max_connections=32, clock=itertools.count().__next__)
    for _ in range(MAX_FAILED + 64):
        end, head = other.connect("other.test", 443)
        end.close()
    assert [row[0] for row in other.rows()] == ["name"]


def test_close_ends_all_connections(run):
    before = set(os.listdir("/dev/fd"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        running = run([f"allowed.test:{port}"])
        tunnel, _ = running.connect("allowed.test", port)
        server, _ = listener.accept()
        with tunnel, server:
            server.sendall(b"half")
            assert tunnel.recv(4) == b"half"
            running.close()
            for end in (tunnel, server):
                with pytest.raises(ConnectionResetError):
                    end.recv(1)
    with pytest.raises(ConnectionRefusedError):
        running.knock()
    assert running.proxy.traffic()["allowed.test"].down == 4
    assert not running.proxy._thread.is_alive()
    assert set(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("ends", [True, False])
def test_what_a_target_sent_before_its_end_still_arrives(ends):
    """End the run before the proxy has copied anything. If the target has closed its socket, all
    its data must still arrive. Otherwise the data may be incomplete, so the peer must see a reset.
    """
    text = os.urandom(100_000)
    stop, other_end = os.pipe()
    os.close(other_end)
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:

        def pair():
            near = stack.enter_context(socket.create_connection(listener.getsockname(), 20))
            return near, stack.enter_context(listener.accept()[0])

        (target, client), (peer, server_end) = pair(), pair()
        target.sendall(text)
        if ends:
            target.shutdown(socket.SHUT_WR)
        copied = copy.PolledCopy(client, server_end, stop=stop, idle_seconds=60)
        with pytest.raises(copy.RunOverError):
            copied.run()
        if ends:
            with peer.makefile("rb") as arrived:
                assert arrived.read() == text
        else:
            with pytest.raises(ConnectionResetError):
                while peer.recv(65536):
                    pass
    os.close(stop)
    assert copied.up == len(text)


@pytest.mark.parametrize("is_slow", [True, False])
def test_cut_data_does_not_look_complete_after_the_other_direction_has_ended(is_slow):
    """Let a server finish sending before it reads. With small socket buffers, only a part of the
    target's data arrives before the run ends, and the server must then see a reset. With large
    buffers, all of it arrives.
    """
    size = 8192 if is_slow else 4 << 20
    text = os.urandom(100_000)
    stop, other_end = os.pipe()
    os.close(other_end)
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def pair():
            near = stack.enter_context(socket.create_connection(listener.getsockname(), 20))
            return near, stack.enter_context(listener.accept()[0])

        (client, target), (server_end, peer) = pair(), pair()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        server_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        peer.shutdown(socket.SHUT_WR)
        target.sendall(text)
        target.close()
        copied = copy.PolledCopy(client, server_end, stop=stop, idle_seconds=60)
        if is_slow:
            with pytest.raises(copy.RunOverError):
                copied.run()
            with pytest.raises(ConnectionResetError):
                while peer.recv(65536):
                    pass
        else:
            copied.run()
            server_end.close()
            with peer.makefile("rb") as arrived:
                assert arrived.read() == text
    os.close(stop)


def test_a_lookup_that_does_not_return_does_not_delay_the_end(run, monkeypatch):
    monkeypatch.setattr(server, "CLOSE_SECONDS", 0.1)
    asked, go_on = threading.Event(), threading.Event()

    def lookup(_name):
        asked.set()
        go_on.wait(60)
        return [bytes([169, 254, 169, 254])]

    running = run(["allowed.test:80"], lookup=lookup)
    with running.knock() as end:
        end.sendall(
            b"GET http://allowed.test/ HTTP/1.1\r\nProxy-Authorization: "
            + running.word
            + b"\r\n\r\n"
        )
        assert asked.wait(90)
        (late,) = running.proxy._handlers
        running.close()
        go_on.set()
        late.join(30)
    assert not late.is_alive()
    # The report was made before this connection ended, so the connection is missing from it.
    assert (running.rows(), dict(running.proxy.traffic())) == ([], {})
    os.close(running.proxy.fileno())


def test_the_same_port_of_ipv6_loopback_is_reserved(run):
    running = run(["allowed.test"])
    if running.opened.reserved is None:
        pytest.skip("needs IPv6 on loopback")
    with socket.socket(socket.AF_INET6) as other, pytest.raises(OSError, match="in use"):
        other.bind(("::1", running.port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("::1", running.port))


def test_a_target_gets_the_proxy_variables(run):
    running = run(["allowed.test"])
    words = running.variables
    proxy = f"http://corral:{running.opened.password}@127.0.0.1:{running.port}"
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        assert (words[name], words[name.lower()]) == (proxy, proxy)
    assert (words["NO_PROXY"], words["no_proxy"], words["NODE_USE_ENV_PROXY"]) == ("", "", "1")
    assert len(running.opened.password) == 32
    assert running.opened.password not in step.LoopbackProxy(allow=("allowed.test",)).describe()
