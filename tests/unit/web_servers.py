"""Start web servers on loopback, with and without TLS, and record their requests."""

import contextlib
import hashlib
import http.server
import pathlib
import ssl
import threading

import pytest

BODY = b"hello from the server"
LARGE = 24 << 20


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.heads.append((self.path, self.headers["Host"], self.headers["Connection"]))
        body = bytes(LARGE) if self.path == "/large" else BODY
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        digest = hashlib.sha256(data).hexdigest().encode()
        self.send_header("Content-Length", str(len(digest)))
        self.end_headers()
        self.wfile.write(digest)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def certificate():
    """Return two paths: a certificate for allowed.test and evil.test, and its key."""
    folder = pathlib.Path(__file__).parent.parent / "tls"
    return str(folder / "certificate.pem"), str(folder / "key.pem")


@pytest.fixture
def web():
    yield from serve()


@pytest.fixture
def tls(certificate):
    yield from serve(certificate)


def serve(certificate=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.heads = []
    server.daemon_threads = True
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
