"""Test an allowlist of hosts on a real Mac: the target can connect only to one loopback port, and
there corral's proxy checks the hosts.
"""

import json
import os
import pathlib
import socket
import sys
import threading

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "darwin", reason="only macOS has Seatbelt")
EPERM = 1
GET = """
import urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=20).read().decode()
except urllib.error.HTTPError as error:
    answer = error.code
"""
CONNECT = "import socket\nsocket.create_connection(('127.0.0.1', int(sys.argv[1]))).close(); answer = 'connected'"
PORT = "port = int(os.environ['HTTP_PROXY'].rpartition(':')[2])\nimport socket\n"
REACH = PORT + "socket.create_connection(('127.0.0.1', port)).close(); answer = 'connected'"
SEND = (
    PORT
    + "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port)); answer = 'sent'"
)
RESOLVE = "import socket\nsocket.getaddrinfo('example.com', 443); answer = 'resolved'"
LISTEN = "import socket\nsocket.create_server(('127.0.0.1', 0)).close(); answer = 'listening'"
HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"


@pytest.fixture
def web():
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            end, _ = listener.accept()
            with end:
                if not end.recv(1 << 16).startswith(b"GET"):
                    return  # the fixture sends END after the test
                end.sendall(HELLO)

    port = listener.getsockname()[1]
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield port
    with socket.create_connection(("127.0.0.1", port)) as last:
        last.sendall(b"END")
        thread.join(20)
    listener.close()


def test_the_probe_of_the_loopback_port_succeeds_on_this_mac():
    from corral.supervisor import findings

    found = findings.current_host(fresh=True).finding("loopback_proxy")
    assert found.status == "proven", found.evidence


def test_the_proxy_port_is_the_only_one_reached(mac, web):
    flags = ("--allow-net", f"127.0.0.1:{web}")
    url = f"http://127.0.0.1:{web}/"
    assert mac.inside(GET, url, flags=flags) == "hello"
    assert mac.inside(GET, "http://elsewhere.test/", flags=flags) == 403
    assert mac.inside(REACH, flags=flags) == "connected"
    # A direct connection to another loopback port is denied.
    beside = socket.create_server(("127.0.0.1", 0))
    with beside:
        port = str(beside.getsockname()[1])
        assert mac.inside(CONNECT, port, flags=flags) == EPERM
        assert mac.outside(CONNECT, port) == "connected"
    assert mac.inside(SEND, flags=flags) == EPERM
    assert mac.inside(LISTEN, flags=flags) == EPERM
    assert mac.outside(LISTEN) == "listening"
    assert mac.inside(RESOLVE, flags=flags) != "resolved"


def test_the_report_names_the_proxy(mac, web):
    path = pathlib.Path(mac.place) / "report"
    code = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{web}/').read())"
    flags = ("--allow-net", f"127.0.0.1:{web}", "--report", str(path))
    done = mac.run(sys.executable, "-c", code, flags=flags)
    assert done.stdout == b"b'hello'\n", done.stderr
    report = json.loads(path.read_text())
    held = next(item for item in report["controls"] if item["control"] == "network")
    assert held["status"] == "verified"
    assert report["traffic"][0][0] == "127.0.0.1"


def test_curl_uses_the_proxy_variables(mac, web):
    if not os.access("/usr/bin/curl", os.X_OK):
        pytest.skip("there is no curl")
    url = f"http://127.0.0.1:{web}/"
    flags = ("--allow-net", f"127.0.0.1:{web}")
    assert mac.run("/usr/bin/curl", "-sS", url, flags=flags).stdout == b"hello"
    past = mac.run("/usr/bin/curl", "-sS", "--noproxy", "*", url, flags=flags)
    assert past.returncode != 0
