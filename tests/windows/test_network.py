"""Test which hosts a target can reach with one of the policy's network levels, or by name through
the relay.
"""

from __future__ import annotations

import http.server
import json
import socket
import threading

import pytest

from windows.conftest import wine

CONNECT = """
import socket
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5).close()
except OSError:
    answer = "denied"
else:
    answer = "reached"
"""
ASK = """
import urllib.error, urllib.request
def ask(url):
    try:
        with urllib.request.urlopen(url, timeout=20) as found:
            return found.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return "denied"
through = urllib.request.ProxyHandler({"http": os.environ.get("HTTP_PROXY", "")})
urllib.request.install_opener(urllib.request.build_opener(through))
asked = [ask(f"http://127.0.0.1:{port}/") for port in sys.argv[1:]]
urllib.request.install_opener(urllib.request.build_opener(urllib.request.ProxyHandler({})))
answer = [asked, ask(f"http://127.0.0.1:{sys.argv[1]}/")]
"""


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def web():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield str(server.server_port)
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.skipif(not wine(), reason="tests a host without AppContainers")
@pytest.mark.parametrize("flags", [(), ("--allow-net", "example.com")])
def test_without_a_container_the_network_is_refused(corral, flags):
    done = corral.run("cmd", "/c", "echo started", flags=flags)
    assert done.returncode == 125
    assert b"network" in done.stderr
    assert b"AppContainer" in done.stderr
    assert b"started" not in done.stdout


@pytest.mark.skipif(not wine(), reason="tests a host without AppContainers")
def test_an_unenforced_network_has_no_relay(corral):
    """Check that the run starts with a warning and without a relay. A relay is useless here:
    without an AppContainer the target can use the network directly.
    """
    flags = ("--best-effort", "--allow-net", "example.com")
    done = corral.run("cmd", "/c", "echo [%HTTP_PROXY%]", flags=flags)
    assert done.returncode == 0, done.stderr
    assert b"[%HTTP_PROXY%]" in done.stdout
    assert b"network is not enforced" in done.stderr


def test_a_policy_with_a_network_level_and_names_is_refused(corral, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text(
        'version = 1\n[network]\nallow = ["example.com"]\n[windows]\nnetwork = "full"\n'
    )
    done = corral.run("cmd", "/c", "echo started", flags=("--policy", str(policy)))
    assert done.returncode == 125
    assert b"started" not in done.stdout


@pytest.mark.real_windows
def test_a_named_host_is_reached_by_the_relay_only(corral, web, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [web, str(other.getsockname()[1])]
        report = tmp_path / "report.json"
        flags = ("--allow-net", f"127.0.0.1:{web}", "--report", str(report))
        assert corral.inside(ASK, *ports, flags=flags) == [[204, 403], "denied"]
    denied = json.loads(report.read_text())["denials"]
    assert [row["destination"] for row in denied] == [f"127.0.0.1:{ports[1]}"]


@pytest.mark.real_windows
@pytest.mark.parametrize("level", ["outbound", "local", "full"])
def test_no_level_opens_the_hosts_loopback(corral, web, tmp_path, level):
    policy = tmp_path / "policy.toml"
    policy.write_text(f'version = 1\n[windows]\nnetwork = "{level}"\n')
    assert corral.outside(CONNECT, web) == "reached"
    assert corral.inside(CONNECT, web, flags=("--policy", str(policy))) == "denied"
