"""The relay on Windows: its pipes and sockets are not those of Linux, the code is the same."""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

from corral.abi import win32
from corral.denials.records import Denials
from corral.network.destinations import check_from_policy
from corral.network.guard import HostAddresses
from corral.network.http_proxy.outbound import Outbound
from corral.platforms.windows.layers import BASE
from corral.platforms.windows.mechanisms import job
from corral.platforms.windows.relay import inside
from corral.platforms.windows.relay import outside as outer
from corral.platforms.windows.relay import start as relay_start
from windows.conftest import wine

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
        argv = relay_start.shim_argv(sys.executable)
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


def test_allowed_and_denied(running, web):
    assert running.get(f"http://allowed.test:{web}/") == (200, b"hello")
    assert running.get(f"http://evil.test:{web}/")[0] == 403
    assert [row.destination for row in running.denials.rows()] == [f"evil.test:{web}"]


def test_a_large_body(running, web):
    code, body = running.get(f"http://allowed.test:{web}/large")
    assert (code, len(body)) == (200, LARGE)


def test_a_refused_connection_does_not_stay_open(running):
    """By abort: on Windows only closing a socket wakes a thread that reads from it."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as end:
        end.sendall(b"nonsense\r\n\r\n")
        assert end.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_the_shim_ends_with_its_pipe(running):
    running.process.poll()
    assert running.process.returncode is None  # the control
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), running.relay._descriptors[1])
    assert running.process.wait(30) == 0


def test_the_host_s_own_addresses_are_known():
    own = HostAddresses()
    assert bytes([127, 0, 0, 1]) in own
    assert bytes([192, 0, 2, 1]) not in own


# --- started as for a run -------------------------------------------------------------------------

ENVIRONMENT = tuple(
    (name, os.environ[name]) for name in ("SYSTEMROOT", "TEMP") if name in os.environ
)


def hosts(**changes):
    """Without a container, and as far as Wine keeps a job's limits: not at all."""
    values = {"allow": ("allowed.test",), "python": sys.executable, "environment": ENVIRONMENT}
    if wine():
        values |= {"memory": None, "read_back": False, "childless": False}
    return relay_start.NamedHosts(**{**values, **changes})


@pytest.fixture
def nothing_is_left():
    before = win32.open_handles()
    yield
    assert win32.open_handles() == before


def test_a_shim_of_a_run(web, nothing_is_left):
    shim = relay_start.start(hosts(), None)
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


def test_a_shim_that_nobody_needed(nothing_is_left):
    relay_start.start(hosts(), None).release()


@pytest.mark.parametrize("program", ["C:\\no\\such\\python.exe", "hostname.exe"])
def test_what_does_not_become_a_shim(nothing_is_left, program):
    path = os.path.join(os.environ["SYSTEMROOT"], "System32", program)
    with pytest.raises(OSError):
        relay_start.start(hosts(python=path), None)


@pytest.mark.skipif(not wine(), reason="Windows does what it is asked")
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
def test_a_shim_whose_limits_do_not_hold_is_not_started(nothing_is_left, asked, text):
    with pytest.raises(OSError, match=text):
        relay_start.start(hosts(**asked), None)
