"""Test `corral run --allow-net` with the macOS backend on Linux: the loopback proxy, but not
Seatbelt.

The fake Seatbelt of `mac_world.py` denies nothing. A target that bypasses the proxy is therefore
not stopped. tests/unit/platforms/macos/test_seatbelt.py tests the profile, and tests/macos runs on
a real Mac.
"""

import contextlib
import json
import os
import pathlib
import socket
import threading

import pytest
from test_macos_plan import PATIENCE, Mac, word

from flags import entry

GET = """
import json, os, sys, urllib.error, urllib.request
found = []
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            found.append([answer.status, answer.read().decode()])
    except urllib.error.HTTPError as error:
        found.append([error.code, ""])
print(json.dumps([found, {name: value for name, value in os.environ.items() if "proxy" in name.lower()}]))
"""
PLAYED = {"MAC_WORLD_SEATBELT": "1"}
HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"


@pytest.fixture
def mac(ordinary, package):
    return Mac(ordinary, package)


@pytest.fixture
def web():
    """Start a server that answers every request with "hello"."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            with end:
                end.recv(1 << 16)
                end.sendall(HELLO)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def played(mac, *arguments, env=None):
    process = mac.popen(*arguments, env={**PLAYED, **(env or {})})
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def test_only_allowed_hosts_are_reached_through_the_proxy(mac, web):
    report, audit = mac.file("report"), mac.file("audit")
    address, name = f"http://127.0.0.1:{web}/", f"http://elsewhere.test:{web}/"
    flags = ("--allow-net", f"127.0.0.1:{web}", "--report", report, "--audit", audit)
    argv = (mac.user.python, "-c", GET, address, name, f"http://127.0.0.1:{web + 1}/")
    code, out, err = played(mac, "run", *flags, "--", *argv)
    assert code == 0, err
    found, variables = json.loads(out)
    assert found == [[200, "hello"], [403, ""], [403, ""]]
    told = json.loads(pathlib.Path(report).read_text())
    held = word(told, "network")
    assert (held["status"], held["mechanism"]) == (
        "verified",
        "seatbelt + proxy on one loopback port",
    )
    assert "only for clients that use the proxy variables" in held["why"]
    rows = [(row["kind"], row["destination"], entry(row["allow"])) for row in told["denials"]]
    assert rows == [
        ("name", f"elsewhere.test:{web}", f"elsewhere.test:{web}"),
        ("address", f"127.0.0.1:{web + 1}", f"127.0.0.1:{web + 1}"),
    ]
    ((host, traffic),) = told["traffic"]
    assert (host, traffic["connections"], traffic["down"] >= len(HELLO)) == ("127.0.0.1", 1, True)
    # None of the texts that corral wrote contains the proxy's password.
    password = variables["HTTPS_PROXY"].removeprefix("http://corral:").partition("@")[0]
    assert len(password) == 32
    for text in (err.decode(), pathlib.Path(report).read_text(), pathlib.Path(audit).read_text()):
        assert password not in text
    # Sanity check: the audit does contain the denial.
    assert f"elsewhere.test:{web}" in pathlib.Path(audit).read_text()
    assert mac.left() == []


def test_other_processes_get_no_connection_and_do_not_see_the_password(mac, web):
    code = "import os, sys; print(os.environ['HTTP_PROXY'], flush=True); sys.stdin.read()"
    argv = ("run", "--allow-net", f"127.0.0.1:{web}", "--", mac.user.python, "-c", code)
    process = mac.popen(*argv, env=PLAYED)
    url = process.stdout.readline().decode().strip()
    password, _, place = url.removeprefix("http://corral:").partition("@")
    port = int(place.partition(":")[2])
    # Other processes of the host do not know the password, so the proxy refuses their requests.
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as end:
        end.sendall(f"GET http://127.0.0.1:{web}/ HTTP/1.1\r\n\r\n".encode())
        assert end.recv(100).startswith(b"HTTP/1.1 407 ")
    status, out, _ = played(mac, "ps", "--json")
    assert status == 0
    assert b"--allow-net" in out or b"python" in out  # Sanity check: `ps` lists the run
    assert password.encode() not in out
    lines = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # the process may have ended
            lines.append(pathlib.Path("/proc", pid, "cmdline").read_bytes())
    # Sanity check: the target's command line is among them.
    assert any(mac.user.python.encode() in line for line in lines)
    assert not any(password.encode() in line for line in lines)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_explain_shows_neither_the_port_nor_the_password(mac):
    for form in (("-v",), ("--json",)):
        argv = ("explain", *form, "--allow-net", "api.example.com", "--", "/bin/true")
        code, out, err = played(mac, *argv)
        assert code == 0, err
        text = out.decode()
        assert (
            "a proxy for api.example.com on one loopback port, which the proxy variables name"
            in text
        )
        assert "and one for the proxy's port" in text
        assert "127.0.0.1" not in text
        assert "corral:" not in text


def test_a_program_that_cannot_be_executed_leaves_no_proxy_port(mac):
    path = mac.file("broken")
    pathlib.Path(path).write_text("#!/nowhere/interpreter\n")
    os.chmod(path, 0o755)
    code, out, _ = played(mac, "run", "--allow-net", "api.example.com", "--", path)
    assert (code in {126, 127}, out) == (True, b"")
    assert mac.left() == []


def test_published_ports_are_refused_under_seatbelt(mac):
    code, out, err = played(mac, "run", "--listen", "8080", "--", "/bin/echo", "ran")
    assert (code, out) == (125, b"")
    assert b"network" in err


def test_an_allowlist_is_refused_without_seatbelt(mac):
    process = mac.popen("run", "--allow-net", "api.example.com", "--", "/bin/echo", "ran")
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (125, b"")
    assert b"network" in err
    # With `--best-effort` the run starts, but without Seatbelt a target could bypass the proxy.
    # Therefore corral starts no proxy, because users could mistake it for a wall.
    code = "import os; print(sorted(name for name in os.environ if 'PROXY' in name.upper()))"
    done = mac.python(code, flags=("--allow-net", "api.example.com"))
    assert done.stdout == b"[]\n"
    assert b"network is not enforced" in done.stderr


PROBE = """
from corral.platforms import current
found = {item.capability: item for item in current.load().probe()}
print(found["loopback_proxy"].status, found["loopback_proxy"].evidence)
"""


def test_the_probe_finds_that_an_imitated_seatbelt_denies_nothing(mac):
    """Run the probe with the fake Seatbelt, which denies nothing. The probe must notice that it can
    reach a port that Seatbelt should deny.
    """
    status, out, err = played(mac, "--api", PROBE)
    assert status == 0, err.decode()
    assert (
        out == b"absent target: RuntimeError: an operation that should have been denied succeeded\n"
    )
    assert mac.left() == []


API = """
import corral, sys
asked = ("http://127.0.0.1:%d/" % PORT, "http://elsewhere.test/")
done = corral.run([sys.executable, "-c", GET, *asked], {"network": {"allow": ["127.0.0.1:%d" % PORT]}})
assert done.exit_code == 0, done
assert b'[[200, "hello"], [403, ""]]' in done.stdout, done
assert [row.destination for row in done.report.denials] == ["elsewhere.test:80"], done.report
print("well")
"""


def test_the_python_api_uses_the_proxy(mac, web):
    """Start a target with an allowlist by the Python API. Its supervisor is a fork of the zygote,
    and starts the proxy's threads only after the target. The proxy must work there, too.
    """
    code = f"PORT, GET = {web}, {GET!r}\n{API}"
    status, out, err = played(mac, "--api", code)
    assert (status, out) == (0, b"well\n"), err.decode()
