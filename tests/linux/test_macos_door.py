"""`corral run --allow-net` with the macOS backend, on Linux: the loopback proxy without the wall around it.

Seatbelt does nothing here (`mac_world.py`), so a target that goes past the proxy is not stopped. The profile is
tested in tests/unit/platforms/macos/test_seatbelt.py, and what a Mac does in tests/macos.
"""

import contextlib
import json
import os
import pathlib
import socket
import threading

import pytest
from test_macos_plan import PATIENCE, Mac, word

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
    """A port that answers every request with hello."""
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


def test_what_is_allowed_and_what_is_not(mac, web):
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
    assert "only for clients that go by the proxy variables" in held["why"]
    rows = [(row["kind"], row["destination"], row["allow"]) for row in told["denials"]]
    assert rows == [
        ("name", f"elsewhere.test:{web}", f"elsewhere.test:{web}"),
        ("address", f"127.0.0.1:{web + 1}", f"127.0.0.1:{web + 1}"),
    ]
    ((host, traffic),) = told["traffic"]
    assert (host, traffic["connections"], traffic["down"] >= len(HELLO)) == ("127.0.0.1", 1, True)
    # The password is the target's alone.
    password = variables["HTTPS_PROXY"].removeprefix("http://corral:").partition("@")[0]
    assert len(password) == 32
    for text in (err.decode(), pathlib.Path(report).read_text(), pathlib.Path(audit).read_text()):
        assert password not in text
    assert f"elsewhere.test:{web}" in pathlib.Path(audit).read_text()  # the control
    assert mac.left() == []


def test_strangers_and_what_others_see_of_a_run(mac, web):
    code = "import os, sys; print(os.environ['HTTP_PROXY'], flush=True); sys.stdin.read()"
    argv = ("run", "--allow-net", f"127.0.0.1:{web}", "--", mac.user.python, "-c", code)
    process = mac.popen(*argv, env=PLAYED)
    url = process.stdout.readline().decode().strip()
    password, _, place = url.removeprefix("http://corral:").partition("@")
    port = int(place.partition(":")[2])
    # Another process of the same host, which does not know the password.
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as end:
        end.sendall(f"GET http://127.0.0.1:{web}/ HTTP/1.1\r\n\r\n".encode())
        assert end.recv(100).startswith(b"HTTP/1.1 407 ")
    status, out, _ = played(mac, "ps", "--json")
    assert status == 0
    assert b"--allow-net" in out or b"python" in out  # the control: the run is there
    assert password.encode() not in out
    lines = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            lines.append(pathlib.Path("/proc", pid, "cmdline").read_bytes())
    assert any(mac.user.python.encode() in line for line in lines)  # the control: targets are seen
    assert not any(password.encode() in line for line in lines)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_explain_says_what_run_does_without_a_port_or_a_password(mac):
    for form in ((), ("--json",)):
        argv = ("explain", *form, "--allow-net", "api.example.com", "--", "/bin/true")
        code, out, err = played(mac, *argv)
        assert code == 0, err
        text = out.decode()
        assert (
            "a proxy on one loopback port, named by the proxy variables, for api.example.com"
            in text
        )
        assert "and one for the proxy's port" in text
        assert "127.0.0.1" not in text
        assert "corral:" not in text


def test_a_program_that_cannot_be_executed_leaves_no_door(mac):
    path = mac.file("broken")
    pathlib.Path(path).write_text("#!/nowhere/interpreter\n")
    os.chmod(path, 0o755)
    code, out, _ = played(mac, "run", "--allow-net", "api.example.com", "--", path)
    assert (code in {126, 127}, out) == (True, b"")
    assert mac.left() == []


def test_ports_to_listen_on_are_refused_behind_the_best_wall(mac):
    code, out, err = played(mac, "run", "--listen", "8080", "--", "/bin/echo", "ran")
    assert (code, out) == (125, b"")
    assert b"network" in err


def test_without_seatbelt_a_list_of_hosts_is_refused(mac):
    process = mac.popen("run", "--allow-net", "api.example.com", "--", "/bin/echo", "ran")
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (125, b"")
    assert b"network" in err
    # And with the user's word there is no proxy that could be taken for a wall.
    code = "import os; print(sorted(name for name in os.environ if 'PROXY' in name.upper()))"
    done = mac.python(code, flags=("--allow-net", "api.example.com"))
    assert done.stdout == b"[]\n"
    assert b"network is not enforced" in done.stderr


PROBE = """
from corral.platforms import current
found = {item.capability: item for item in current.load().probe()}
print(found["door"].status, found["door"].evidence)
"""


def test_the_probe_sees_it_when_there_is_no_wall(mac):
    """The control of the probe: under a Seatbelt that does nothing, the port beside the proxy's is reached."""
    status, out, err = played(mac, "--api", PROBE)
    assert status == 0, err.decode()
    assert out == b"absent target: RuntimeError: the act that should have been denied succeeded\n"
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


def test_the_python_api(mac, web):
    """The proxy's threads are in a supervisor that the zygote forked, and start after its target."""
    code = f"PORT, GET = {web}, {GET!r}\n{API}"
    status, out, err = played(mac, "--api", code)
    assert (status, out) == (0, b"well\n"), err.decode()
