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

from corral.network.addresses import read_network
from corral.network.denials import Denials
from corral.network.rules import rules_of
from corral.windows import relay as outer

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
        argv = outer.shim_argv(sys.executable)
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.relay = outer.Relay(
            os.dup(self.process.stdout.fileno()),
            os.dup(self.process.stdin.fileno()),
            rules=rules_of(allow),
            denials=self.denials,
            admitted=(read_network("127.0.0.0/8"),),
            lookup=lambda _name: [bytes([127, 0, 0, 1])],
        )
        self.process.stdin.close()
        self.process.stdout.close()
        self.port = self.relay.start()

    def get(self, url):
        handler = urllib.request.ProxyHandler({"http": outer.variables(self.port)["HTTP_PROXY"]})
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
