"""Test the whole relay with real processes, pipes, sockets and clients.

Only the container is missing: the shim, which is the relay's small program in the target's
container, runs here as an ordinary process.
"""

import contextlib
import hashlib
import http.client
import http.server
import os
import socket
import ssl
import subprocess
import sys
import threading
import types
import urllib.error
import urllib.request

import pytest
from web_servers import BODY, LARGE

from corral.denials.records import Denials
from corral.network.addresses import parse_network
from corral.network.budgets import Timeouts
from corral.network.destinations import DestinationCheck
from corral.network.guard import HostAddresses
from corral.network.host_proxy import proxy_from_environment
from corral.network.http_proxy.outbound import MAX_FAILED, Outbound
from corral.network.rules import parse_rules
from corral.platforms.windows.relay import inside
from corral.platforms.windows.relay import outside as outer
from corral.platforms.windows.relay import start as relay_start
from flags import entry

LOOPBACK = (parse_network("127.0.0.0/8"),)
SHORT = Timeouts(request_seconds=0.3, connect_seconds=2.0)


def outbound(allow, denials, *, admitted=(), proxy=None, tls_ports=frozenset({443}), **options):
    check = DestinationCheck(
        parse_rules(allow), denials, admitted=admitted, proxy=proxy, tls_ports=tls_ports
    )
    return Outbound(check, **options)


class Running:
    """A shim in a separate process, and its relay."""

    def __init__(self, allow, **options):
        self.denials = Denials()
        self.asked = []
        self.process = subprocess.Popen(
            relay_start.shim_argv(sys.executable), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        options = {"lookup": self.lookup, "admitted": LOOPBACK, **options}
        reader = os.dup(self.process.stdout.fileno())
        self.port = inside.read_hello(reader)
        self.relay = outer.Relay(
            reader,
            os.dup(self.process.stdin.fileno()),
            outbound(allow, self.denials, **options),
        )
        # Close this process's copies of the pipe ends, so that only the relay has them, as in a
        # run.
        self.process.stdin.close()
        self.process.stdout.close()

    def lookup(self, name):
        self.asked.append(name)
        return [bytes([127, 0, 0, 1])]

    def rows(self):
        return [(row.kind, row.destination, entry(row.allow)) for row in self.denials.rows()]

    def open(self, url):
        handler = urllib.request.ProxyHandler({"http": f"http://127.0.0.1:{self.port}"})
        return urllib.request.build_opener(handler).open(url, timeout=30)

    def connect(self, host, port):
        """Open a tunnel with CONNECT, and return the socket and the proxy's answer."""
        end = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        end.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            chunk = end.recv(1)
            if not chunk:
                break
            head += chunk
        return end, head

    def close(self):
        self.process.kill()
        self.process.wait()
        self.relay.close()


@pytest.fixture
def run():
    with contextlib.ExitStack() as stack:

        def make(allow, **options):
            made = Running(allow, **options)
            stack.callback(made.close)
            return made

        yield make


def status_of(call):
    try:
        with call() as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_the_relay_reaches_an_allowed_name_and_denies_another(run, web):
    port = web.server_port
    running = run([f"allowed.test:{port}"])
    assert status_of(lambda: running.open(f"http://allowed.test:{port}/x")) == (200, BODY)
    code, text = status_of(lambda: running.open(f"http://other.test:{port}/x"))
    assert (code, b"not in network.allow" in text) == (403, True)
    assert running.rows() == [("name", f"other.test:{port}", f"other.test:{port}")]
    assert running.asked == ["allowed.test"]  # a denied name is not resolved
    assert web.heads == [("/x", f"allowed.test:{port}", "close")]
    while not running.relay.traffic():
        pass  # wait until the relay has seen the end of the connection
    traffic = running.relay.traffic()["allowed.test"]
    assert traffic.connections == 1
    assert traffic.down > len(BODY)


def test_other_ports_and_addresses_are_denied(run, web):
    port = web.server_port
    running = run([f"allowed.test:{port + 1}", f"127.0.0.1:{port}"], admitted=())
    assert status_of(lambda: running.open(f"http://allowed.test:{port}/"))[0] == 403
    assert status_of(lambda: running.open(f"http://127.0.0.2:{port}/"))[0] == 403
    # Sanity check: the address guard allows an address that the policy names.
    assert status_of(lambda: running.open(f"http://127.0.0.1:{port}/")) == (200, BODY)
    assert [row[:2] for row in running.rows()] == [
        ("port", f"allowed.test:{port}"),
        ("address", f"127.0.0.2:{port}"),
    ]


def test_an_allowed_name_that_leads_to_the_host_is_denied(run, web):
    port = web.server_port
    running = run([f"allowed.test:{port}"], admitted=())
    assert status_of(lambda: running.open(f"http://allowed.test:{port}/"))[0] == 502
    ((kind, led, allow),) = running.rows()
    assert (kind, led, allow) == ("guard", f"allowed.test (127.0.0.1:{port})", f"127.0.0.1:{port}")
    assert web.heads == []


def test_a_name_is_looked_up_once(run, web):
    """Make the second lookup of a name return a different address. The relay must connect to the
    address that it has checked, without looking up the name again.
    """
    answers = [[bytes([127, 0, 0, 1])], [bytes([169, 254, 169, 254])]]
    running = run([f"allowed.test:{web.server_port}"], lookup=lambda _name: answers.pop(0))
    url = f"http://allowed.test:{web.server_port}/"
    assert status_of(lambda: running.open(url)) == (200, BODY)
    assert status_of(lambda: running.open(url))[0] == 502
    assert running.rows()[0][0] == "guard"


@pytest.mark.rig("curl")
def test_curl_reaches_the_relay_by_its_variables(run, web, tls, certificate):
    allow = [f"allowed.test:{web.server_port}", f"allowed.test:{tls.server_port}"]
    running = run(allow, tls_ports=frozenset({tls.server_port}))
    found = {name.lower(): value for name, value in relay_start.variables(running.port).items()}

    def curl(url):
        argv = ["curl", "-sS", "--max-time", "30", "--cacert", certificate[0], url]
        return subprocess.run(argv, env=found, capture_output=True, check=False)

    assert curl(f"http://allowed.test:{web.server_port}/").stdout == BODY
    assert curl(f"https://allowed.test:{tls.server_port}/").stdout == BODY
    denied = curl(f"https://evil.test:{tls.server_port}/")
    assert denied.returncode != 0
    assert b"403" in denied.stderr
    assert [row[0] for row in running.rows()] == ["name"]


def tls_client(running, certificate, server_name):
    context = ssl.create_default_context(cafile=certificate[0])
    end, head = running.connect("allowed.test", running.tls_port)
    assert head.startswith(b"HTTP/1.1 200")
    with end, context.wrap_socket(end, server_hostname=server_name) as wrapped:
        wrapped.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: wrapped.recv(1 << 16), b""))


def test_a_hello_with_another_name_is_denied(run, tls, certificate):
    """Send a different host name in the TLS hello than in CONNECT. The name in the hello must be
    allowed too, because another host at the same address may answer to it.
    """
    running = run([f"allowed.test:{tls.server_port}"], tls_ports=frozenset({tls.server_port}))
    running.tls_port = tls.server_port
    assert tls_client(running, certificate, "allowed.test").endswith(BODY)
    with pytest.raises(OSError):
        tls_client(running, certificate, "evil.test")
    port = tls.server_port
    assert running.rows() == [("sni", "evil.test", f"evil.test:{port}")]


def test_large_bodies_arrive_in_both_directions(run, web):
    port = web.server_port
    running = run([f"allowed.test:{port}"])
    code, body = status_of(lambda: running.open(f"http://allowed.test:{port}/large"))
    assert (code, len(body)) == (200, LARGE)
    data = os.urandom(1 << 20) * 8
    client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    client.set_tunnel("allowed.test", port)
    for _ in range(2):  # use the tunnel for a second request
        client.request("POST", "/", body=data)
        assert client.getresponse().read().decode() == hashlib.sha256(data).hexdigest()
    client.close()


def test_a_client_that_does_not_read_delays_only_itself(run, web):
    port = web.server_port
    running = run([f"allowed.test:{port}"])
    lazy, head = running.connect("allowed.test", port)
    assert head.startswith(b"HTTP/1.1 200")
    with lazy:
        lazy.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert lazy.recv(4).startswith(b"HTTP")  # from now on the client does not read
        for _ in range(5):
            assert status_of(lambda: running.open(f"http://allowed.test:{port}/")) == (200, BODY)


def echo_server():
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        end, _ = listener.accept()
        with end:
            # read until the client closes its end
            data = b"".join(iter(lambda: end.recv(1 << 16), b""))
            end.sendall(data[::-1])

    thread = threading.Thread(target=answer)
    thread.start()
    return listener, thread


def test_half_closed_connections_work_in_the_relay(run):
    listener, thread = echo_server()
    with listener:
        port = listener.getsockname()[1]
        end, head = run([f"allowed.test:{port}"]).connect("allowed.test", port)
        assert head.startswith(b"HTTP/1.1 200")
        with end:
            end.sendall(b"abc")
            end.shutdown(socket.SHUT_WR)
            assert b"".join(iter(lambda: end.recv(100), b"")) == b"cba"
        thread.join()


@pytest.mark.not_wine(reason="its sockets end in order, whatever SO_LINGER says")
def test_a_broken_connection_is_passed_on_by_the_relay(run):
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        port = listener.getsockname()[1]
        end, _ = run([f"allowed.test:{port}"]).connect("allowed.test", port)
        server, _ = listener.accept()
        inside.abort(server)
        with end, pytest.raises(ConnectionResetError):
            end.recv(1)


def test_connections_beyond_the_limit_wait_for_a_free_one(run, web):
    port = web.server_port
    running = run([f"allowed.test:{port}"])
    held = [
        socket.create_connection(("127.0.0.1", running.port)) for _ in range(inside.MAX_STREAMS)
    ]
    results = []
    late = threading.Thread(
        target=lambda: results.append(
            status_of(lambda: running.open(f"http://allowed.test:{port}/"))
        )
    )
    late.start()
    for end in held:
        end.close()
    late.join(60)
    assert results == [(200, BODY)]
    assert running.rows() == []


@pytest.mark.not_wine(reason="its sockets end in order, whatever SO_LINGER says")
def test_a_silent_client_is_disconnected(run):
    running = run(["allowed.test"], timeouts=SHORT)
    end = socket.create_connection(("127.0.0.1", running.port), timeout=20)
    with end, pytest.raises(ConnectionResetError):
        end.recv(1)


def test_invalid_requests_get_an_error(run):
    running = run(["allowed.test"])
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as end:
        end.sendall(b"\x05\x01\x00\r\n\r\n")  # SOCKS
        assert end.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_the_relay_uses_the_hosts_own_proxy(run, web):
    """Use a second relay as the host's proxy. It gets the destination's name, so the first relay
    must not look up the name.
    """
    port = web.server_port
    upstream = run([f"allowed.test:{port}"])
    proxy = proxy_from_environment({"https_proxy": f"http://127.0.0.1:{upstream.port}"})
    running = run([f"allowed.test:{port}"], proxy=proxy)
    assert status_of(lambda: running.open(f"http://allowed.test:{port}/")) == (200, BODY)
    assert (running.asked, upstream.asked) == ([], ["allowed.test"])
    code, _ = status_of(lambda: running.open(f"http://other.test:{port}/"))
    assert code == 403
    assert upstream.rows() == []


def test_the_hosts_own_addresses_are_found():
    own = HostAddresses()
    assert bytes([127, 0, 0, 1]) in own
    assert bytes([192, 0, 2, 1]) not in own  # no host has a TEST-NET-1 address
    assert "127.0.0.1" not in own
    with socket.create_server(("::1", 0), family=socket.AF_INET6):
        assert bytes(15) + b"\1" in own


def test_the_shim_ends_with_its_pipe(run):
    running = run(["allowed.test"])
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), running.relay._descriptors[1])
    assert running.process.wait(90) == 0


class ByHand:
    """A relay whose input comes from the test. A target that has taken over the shim could send the
    same input.
    """

    def __init__(self, allow, **options):
        reader, self.theirs = os.pipe()
        self.ours, writer = os.pipe()
        self.denials = Denials()
        out = outbound(allow, self.denials, **options)
        self.relay = outer.Relay(reader, writer, out)

    def say(self, *frames):
        os.write(self.theirs, b"".join(inside.frame(*item) for item in frames))

    def close(self):
        os.close(self.theirs)
        self.relay.close()
        os.close(self.ours)


def test_an_invalid_frame_ends_the_relay():
    by_hand = ByHand(["allowed.test"])
    os.write(by_hand.theirs, b"GET / HTTP/1.1\r\n\r\n")
    by_hand.relay._thread.join(20)
    assert not by_hand.relay._thread.is_alive()
    by_hand.close()
    (row,) = by_hand.denials.rows()
    assert row.kind == "limit"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", OSError),
        (b"GET / HTTP/1.1\r\n", inside.ProtocolError),
        (inside.frame(inside.HELLO, 0, b"\0\0"), inside.ProtocolError),
        (inside.frame(inside.HELLO, 1, b"\1\0"), inside.ProtocolError),
        (inside.frame(inside.OPEN, 1) + b"\0\0", inside.ProtocolError),
    ],
)
def test_an_invalid_first_frame_ends_the_relay(said, error):
    reading, writing = os.pipe()
    os.write(writing, said)
    os.close(writing)
    with pytest.raises(error):
        inside.read_hello(reading)
    os.close(reading)


def test_frames_written_by_the_target_are_checked(web):
    """Write frames directly to the relay. The relay does not trust the shim, so it must check the
    frames itself.
    """
    port = web.server_port
    options = {"lookup": lambda _: [bytes([127, 0, 0, 1])], "admitted": LOOPBACK}
    by_hand = ByHand([f"allowed.test:{port}"], **options)
    parser, answers = inside.Frames(), {}
    for number, host in ((1, "evil.test"), (2, "allowed.test")):
        request = f"GET http://{host}:{port}/ HTTP/1.1\r\n\r\n".encode()
        by_hand.say((inside.OPEN, number), (inside.DATA, number, request))
        while number not in answers:
            for kind, stream, payload in parser.feed(os.read(by_hand.ours, 1 << 16)):
                if kind == inside.DATA:
                    answers.setdefault(stream, payload)
    by_hand.close()
    assert answers[1].startswith(b"HTTP/1.1 403")
    assert answers[2].startswith(b"HTTP/1.1 200")
    assert [row.destination for row in by_hand.denials.rows()] == [f"evil.test:{port}"]


def test_many_streams_are_accepted_at_a_limited_rate(monkeypatch):
    """Open many streams to a denied name. Each denial makes one of the relay's handlers pause. When
    all handlers pause, the relay stops reading, the pipe fills up, and the process that writes to
    the pipe has to wait.
    """
    rests, resting, let_go = [], threading.Semaphore(0), threading.Event()

    def sleep(seconds):
        rests.append(seconds)
        if seconds:
            resting.release()
            let_go.wait(60)

    monkeypatch.setattr(outer, "time", types.SimpleNamespace(sleep=sleep))
    # Give the relay enough time to read the last stream before `close` stops it.
    monkeypatch.setattr(outer, "CLOSE_SECONDS", 60.0)
    by_hand = ByHand(["allowed.test"], clock=lambda: 0.0)
    flood = [
        item
        for number in range(1, 3001)
        for item in ((inside.OPEN, number), (inside.RESET, number))
    ]
    flooding = threading.Thread(target=by_hand.say, args=flood)
    flooding.start()
    for _ in range(outer.MAX_HANDLERS):
        assert resting.acquire(timeout=60)
    # All handlers are pausing. The relay has checked only as many of the 3000 streams as the rate
    # limit allows.
    assert len(rests) == MAX_FAILED - 1 + outer.MAX_HANDLERS
    assert not by_hand.relay._handlers.acquire(blocking=False)
    let_go.set()
    flooding.join(60)
    by_hand.close()
    # When every handler is free, all streams have ended.
    for _ in range(outer.MAX_HANDLERS):
        assert by_hand.relay._handlers.acquire(timeout=60)
    assert len(rests) == 3000
    assert rests[: MAX_FAILED - 1] == [0.0] * (MAX_FAILED - 1)
    assert max(rests) > 1.0


def test_the_shim_does_not_need_corrals_files():
    """Check that the shim's whole code is on its command line, and that this code imports none of
    corral's modules. A container can read the interpreter, but not corral's files.
    """
    argv = relay_start.shim_argv(sys.executable)
    assert argv[1:4] == ["-I", "-S", "-c"]
    code = "import sys; compile(sys.argv[1], 'shim', 'exec'); print('corral' in sys.argv[1].partition('\"\"\"')[2].partition('\"\"\"')[2])"
    done = subprocess.run(
        [sys.executable, "-c", code, argv[4]], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
