"""Test the relay with Windows pipes and sockets, and the shim, which is the relay's small program
in the target's container.
"""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

from corral.abi import win32
from corral.denials.records import Denials
from corral.network.destinations import check_from_policy
from corral.network.guard import HostAddresses
from corral.network.http_proxy.outbound import Outbound
from corral.plan.model import Results
from corral.platforms.windows.layers import BASE
from corral.platforms.windows.mechanisms import job
from corral.platforms.windows.relay import inside
from corral.platforms.windows.relay import outside as outer
from corral.platforms.windows.relay import start as relay_start
from windows.conftest import PYTHON, wine

LARGE = 4 << 20


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = bytes(LARGE) if self.path == "/large" else b"hello"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def web():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


class Running:
    def __init__(self, allow):
        self.denials = Denials()
        argv = relay_start.shim_argv(PYTHON)
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        reader = os.dup(self.process.stdout.fileno())
        self.port = inside.read_hello(reader)
        self.relay = outer.Relay(
            reader,
            os.dup(self.process.stdin.fileno()),
            Outbound(
                check_from_policy(allow, ["127.0.0.0/8"], {}, self.denials),
                lookup=lambda _name: [bytes([127, 0, 0, 1])],
            ),
        )
        self.process.stdin.close()
        self.process.stdout.close()

    def get(self, url):
        handler = urllib.request.ProxyHandler(
            {"http": relay_start.variables(self.port)["HTTP_PROXY"]}
        )
        try:
            with urllib.request.build_opener(handler).open(url, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.relay.close()


@pytest.fixture
def running(web):
    made = Running([f"allowed.test:{web}"])
    yield made
    made.close()


def test_only_allowed_hosts_are_reached_through_the_relay(running, web):
    assert running.get(f"http://allowed.test:{web}/") == (200, b"hello")
    assert running.get(f"http://evil.test:{web}/")[0] == 403
    assert [row.destination for row in running.denials.rows()] == [f"evil.test:{web}"]


def test_a_large_body_arrives(running, web):
    code, body = running.get(f"http://allowed.test:{web}/large")
    assert (code, len(body)) == (200, LARGE)


def test_a_refused_connection_does_not_stay_open(running):
    """Check that the relay closes the socket. On Windows nothing else wakes a thread that reads from the socket."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as end:
        end.sendall(b"nonsense\r\n\r\n")
        assert end.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_the_shim_ends_with_its_pipe(running):
    running.process.poll()
    assert running.process.returncode is None  # Sanity check: the shim still runs
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), running.relay._descriptors[1])
    assert running.process.wait(90) == 0


def test_the_hosts_own_addresses_are_known_on_windows():
    own = HostAddresses()
    assert bytes([127, 0, 0, 1]) in own
    assert bytes([192, 0, 2, 1]) not in own


# The tests below start the shim as a run does.

ENVIRONMENT = tuple(
    (name, os.environ[name]) for name in ("SYSTEMROOT", "TEMP") if name in os.environ
)


def hosts(**changes):
    """Return the step that starts the shim, without a container. Under Wine the step also has no
    limits, because Wine does not keep them.
    """
    values = {"allow": ("allowed.test",), "python": PYTHON, "environment": ENVIRONMENT}
    if wine():
        values |= {"memory": None, "read_back": False, "childless": False}
    return relay_start.NamedHosts(**{**values, **changes})


@pytest.fixture
def nothing_is_left():
    before = win32.open_handles()
    yield
    assert win32.open_handles() == before


def test_the_shim_of_a_run_relays_a_request_and_leaves_no_process_or_handle(web, nothing_is_left):
    shim = relay_start.start(hosts(), Results())
    relay = outer.Relay(
        *shim.take_pipes(),
        Outbound(
            check_from_policy([f"allowed.test:{web}"], ["127.0.0.0/8"], {}, None),
            lookup=lambda _name: [bytes([127, 0, 0, 1])],
        ),
    )
    with socket.create_connection(("127.0.0.1", shim.port), timeout=30) as end:
        end.sendall(f"GET http://allowed.test:{web}/ HTTP/1.1\r\n\r\n".encode())
        answer = b"".join(iter(lambda: end.recv(1000), b""))
    assert answer.endswith(b"hello")
    shim.release()
    relay.close()
    with pytest.raises(OSError, match=r"10061|refused"):
        socket.create_connection(("127.0.0.1", shim.port), timeout=30)


def test_an_unused_shim_leaves_no_process_or_handle(nothing_is_left):
    relay_start.start(hosts(), Results()).release()


@pytest.mark.parametrize("program", ["C:\\no\\such\\python.exe", "hostname.exe"])
def test_a_program_that_is_not_a_shim_is_refused(nothing_is_left, program):
    path = os.path.join(os.environ["SYSTEMROOT"], "System32", program)
    with pytest.raises(OSError):
        relay_start.start(hosts(python=path), Results())


@pytest.mark.skipif(not wine(), reason="tests a host that ignores the limits")
@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"read_back": True, "memory": relay_start.SHIM_MEMORY}, "ActiveProcessLimit was set to"),
        ({"ui": job.UI_LIMITS}, "UIRestrictionsClass|QueryInformationJobObject"),
        ({"bits": BASE}, "no extension points: reads back as off"),
        ({"childless": True}, "no child processes: reads back as off"),
    ],
    ids=["limits", "ui", "mitigations", "children"],
)
def test_a_shim_is_not_started_if_windows_does_not_keep_its_limits(nothing_is_left, asked, text):
    with pytest.raises(OSError, match=text):
        relay_start.start(hosts(**asked), Results())
