"""Test corral in a container that is hardened like a pod. `doctor` must report everything that does
not work there.
"""

from __future__ import annotations

import json

import pytest

import rigs
from containers import HARDENED, MAIN, Podman, fetch_server
from corral.platforms.linux.options import BROKER, REPLACEMENT
from world import PUBLIC, make_world

pytestmark = pytest.mark.rig("containers")

BOMB = """
import os, signal
made = 0
try:
    while made < 40:
        if os.fork() == 0:
            signal.pause()
        made += 1
except BlockingIOError:
    print(made)
"""
KEEP = "import os; open(os.environ['STATE_DIRECTORY'] + '/kept', 'x')"
REACH = """
import json, socket, sys
def reached(port):
    try:
        with socket.create_connection(("127.0.0.1", int(port))) as end:
            return end.recv(16).decode()
    except OSError as error:
        return type(error).__name__
found = [item[4][0] for item in socket.getaddrinfo("good.test", 80, type=socket.SOCK_STREAM)]
print(json.dumps([*map(reached, sys.argv[1:]), found]))
"""
SERVE = """
import socket
with socket.create_server(("0.0.0.0", 8123)) as server:
    print("ready", flush=True)
    server.accept()[0].sendall(b"served")
"""
# This program runs all commands in one container, because corral would have to probe again in a new
# one.
ASK = f"""
import json, subprocess, sys
import socket, threading
def serve(listener):
    while True:
        listener.accept()[0].sendall(b"welcome")
servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
for server in servers:
    threading.Thread(target=serve, args=(server,), daemon=True).start()
ports = [str(server.getsockname()[1]) for server in servers]
allow = ("--allow-net", f"127.0.0.1:{{ports[0]}}", "--allow-net", "good.test")
def published():
    argv = [sys.executable, "-c", {MAIN!r}, "run", "--listen", "8123", "--", sys.executable, "-c", {SERVE!r}]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        if process.stdout.readline() != b"ready\\n":
            return process.stderr.read().decode()
        with socket.create_connection(("127.0.0.1", 8123)) as end:
            return end.recv(16).decode()
def corral(*arguments):
    done = subprocess.run([sys.executable, "-c", {MAIN!r}, *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr
with open("/tmp/state.toml", "w") as file:
    file.write("version = 1\\n[filesystem]\\nstate = true\\n")
print(json.dumps({{
    "demo": corral("demo", "--json"),
    "table": corral("demo"),
    "doctor": corral("doctor", "--json"),
    "lines": corral("doctor"),
    "explain": corral("explain", "--json", "--", "/bin/true"),
    "ids": corral("run", "--", "/usr/bin/id", "-u"),
    "bomb": corral("run", "--allow-subprocess", "--max-pids", "20", "--", sys.executable, "-c", {BOMB!r}),
    "state": corral("run", "--policy", "/tmp/state.toml", "--", sys.executable, "-c", {KEEP!r}),
    "state again": corral("run", "--policy", "/tmp/state.toml", "--", sys.executable, "-c", {KEEP!r}),
    "network": corral("run", *allow, "--", sys.executable, "-c", {REACH!r}, *ports),
    "published": published(),
    "network explained": corral("explain", "--json", *allow, "--", "/bin/true"),
    "disk": corral("run", "--max-disk", "1M", "--", "/bin/true"),
    "left": [name for name in __import__("os").listdir("/tmp") if name.startswith("corral-")],
}}))
"""


@pytest.fixture(scope="module")
def podman():
    made = Podman()
    yield made
    made.close()


@pytest.fixture(scope="module", params=["podman", "docker"])
def profile(request):
    return request.param


@pytest.fixture(scope="module", params=[1000, 0], ids=["user", "root"])
def uid(request):
    return request.param


@pytest.fixture(scope="module")
def said(podman, uid, profile):
    """Return the results of all commands that `ASK` runs inside the container. All pytest workers
    share one run.
    """

    def ask():
        done = podman.run("/usr/bin/python3", "-c", ASK, uid=uid, profile=profile)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    return rigs.once(f"said-in-{profile}-{uid}", ask)


def test_the_demo_runs_in_a_container(said):
    code, out, err = said["demo"]
    data = json.loads(out)
    assert (code, data["ok"], data["did_not_hold"]) == (0, True, []), (out, err)
    acts = {row["act"]: row for row in data["acts"]}
    assert acts["start 200 threads"]["wall"]["mechanism"] == "seccomp notification"
    for name in (
        "read the SSH key",
        "connect to the host by TCP",
        "start a shell",
        "outlive the server",
    ):
        assert acts[name]["verdict"] == "stopped", acts[name]
    assert said["table"][0] == 0
    assert "did not hold: nothing" in said["table"][1]


def test_doctor_names_the_controls_that_are_not_enforced(said):
    """Check that doctor's last line names all controls that `explain` reports as degraded, and that
    the demo finds no others.
    """
    controls = json.loads(said["explain"][1])["controls"]
    lost = {held["control"] for held in controls if held["status"] == "degraded"}
    assert lost == {"memory", "disk"}
    verdict = said["lines"][1].splitlines()[-1]
    assert said["lines"][0] == 0
    assert "every wall is enforced" in verdict
    assert all(name in verdict.partition("not fully enforced: ")[2] for name in lost), verdict
    unpromised = {
        row["wall"]["control"]
        for row in json.loads(said["demo"][1])["acts"]
        if row["verdict"] == "unpromised"
    }
    assert unpromised <= lost


def test_doctor_names_the_engines_denials_and_their_effect_in_one_line(said):
    lines = [line for line in said["lines"][1].splitlines() if "Container" in line]
    assert len(lines) == 1
    assert lines[0].startswith("[!] Container (podman): its engine forbids namespaces, so ")
    assert "disk space is not limited" in lines[0]


def test_a_disk_limit_is_refused_with_the_engines_flag_as_hint(said):
    code, _, err = said["disk"]
    assert code == 125
    first, hint = err.splitlines()[-2:]
    assert first.startswith("corral: this host cannot enforce disk: no private_space")
    assert "--tmpfs /tmp:size=1g" in hint


def test_the_engines_own_limit_applies_to_the_private_space(podman):
    """Give the container a small /tmp, so that a large file does not fit into the target's private
    directory. Sanity check: with a larger /tmp the file fits.
    """
    code = "open('file', 'wb').write(bytes(24 << 20))"
    small = tuple("--tmpfs=/tmp:size=16m" if flag == "--tmpfs=/tmp" else flag for flag in HARDENED)
    done = podman.corral("run", "--", "/usr/bin/python3", "-c", code, uid=1000, options=small)
    assert b"No space left on device" in done.stderr
    done = podman.corral("run", "--", "/usr/bin/python3", "-c", code, uid=1000)
    assert done.returncode == 0, done.stderr


def test_the_target_has_the_users_own_id(said, uid):
    assert said["ids"][:2] == [0, f"{uid}\n"], said["ids"]


def test_roots_target_gets_its_own_id_with_the_engines_capabilities(podman, profile):
    """Run as root with the engine's default capabilities, as most images do. The target must get a
    separate user id, as root's targets do on a host.
    """
    options = tuple(flag for flag in HARDENED if flag != "--cap-drop=all")
    options += ("--tmpfs=/var/lib",)  # corral keeps the homes of root's targets in /var/lib
    done = podman.run("/usr/bin/python3", "-c", ASK, uid=0, profile=profile, options=options)
    assert done.returncode == 0, done.stderr.decode()
    said = json.loads(done.stdout)
    demo = json.loads(said["demo"][1])
    assert (said["demo"][0], demo["did_not_hold"]) == (0, []), said["demo"]
    assert said["ids"][0] == 0
    assert int(said["ids"][1]) > 1 << 16
    assert said["bomb"][:2] == [0, "19\n"]
    assert said["state"][0] == 0, said["state"]
    assert "FileExistsError" in said["state again"][2]
    assert said["left"] == []


def test_a_limit_on_processes_is_enforced_in_a_container(said):
    assert said["bomb"][:2] == [0, "19\n"], said["bomb"]


def test_only_allowed_hosts_are_reached_in_a_container(said, profile):
    """Check that only an allowed host is reached. Docker's seccomp filter denies pidfd_getfd, so
    corral cannot connect the target's own sockets. It then replaces them with connected sockets,
    and the plan must say so.
    """
    code, out, err = said["network"]
    assert code == 0, err
    assert json.loads(out) == ["welcome", "ConnectionRefusedError", ["192.31.196.1"]]
    assert said["published"] == "served"
    controls = json.loads(said["network explained"][1])["controls"]
    [network] = [held for held in controls if held["control"] == "network"]
    replaced = "socket broker + replaced sockets"
    assert network["mechanism"] == (replaced if profile == "docker" else "socket broker")


def test_a_kept_home_survives_runs_in_a_container(said):
    assert said["state"][0] == 0, said["state"]
    assert "FileExistsError" in said["state again"][2]


def test_runs_in_a_container_leave_no_files_or_processes(said):
    assert said["left"] == []


# This program fetches pages from two names with the same address. Only one name is allowed.
TALK = f"""
import json, subprocess, sys
sys.path.insert(0, "/corral")
from corral.messages.client import Client
flags = ["--profile", "fetch", "--allow-net", "page.example", "--read", "/srv/server", "--env", "PYTHONPATH=/srv/server"]
server = ["/usr/bin/python3", "-m", "mcp_server_fetch", "--ignore-robots-txt"]
argv = [sys.executable, "-c", {MAIN!r}, "run", *flags, "--report", "/tmp/report", "--", *server]
process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
client = Client(process.stdout, process.stdin)
client.connect()
texts = []
for name in ("page.example", "other.example"):
    answer = client.call_tool("fetch", {{"url": f"http://{{name}}/", "raw": True}})
    texts.append([answer.error, answer.text])
process.stdin.close()
process.wait()
controls = json.load(open("/tmp/report"))["controls"]
print(json.dumps([texts, [held["mechanism"] for held in controls if held["control"] == "network"], process.returncode]))
"""
PAGE = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nfrom far away"


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """Yield a network in which every address answers on port 80."""
    for world in make_world(tmp_path_factory.mktemp("world")):
        world.serve(lambda end: end.recv(4096) and end.sendall(PAGE), port=80)
        yield world


def test_a_published_server_works_with_its_network_profile(podman, uid, profile, far):
    options = (
        *HARDENED, f"--volume={fetch_server()}:/srv/server:ro",
        f"--add-host=page.example:{PUBLIC}", f"--add-host=other.example:{PUBLIC}",
    )  # fmt: skip
    far.arrived.clear()
    network = f"ns:{far.near.path()}"
    done = podman.run(
        "/usr/bin/python3", "-c", TALK, uid=uid, profile=profile, options=options, network=network
    )
    assert done.returncode == 0, done.stderr.decode()
    (allowed, denied), mechanisms, code = json.loads(done.stdout)
    assert "from far away" in allowed[1]
    assert denied[0]
    assert "from far away" not in denied[1]
    assert (far.arrived, code) == ([(PUBLIC, 80)], 0)
    # Docker's default seccomp filter denies pidfd_getfd, so the socket broker cannot connect the
    # target's own sockets. It replaces them instead.
    assert mechanisms == [{"podman": BROKER, "docker": REPLACEMENT}[profile]]


def test_a_missing_writable_tmp_is_named_with_its_remedy(podman, uid, profile):
    """Run without a writable /tmp. The error must name /tmp and the flag that makes it writable.
    Sanity check: with a writable /tmp the same command works.
    """
    options = tuple(flag for flag in HARDENED if flag != "--tmpfs=/tmp")
    done = podman.corral("run", "--", "/bin/true", uid=uid, profile=profile, options=options)
    assert done.returncode == 125
    text = done.stderr.decode()
    assert "/tmp cannot be written" in text
    assert "--tmpfs /tmp" in text
    assert podman.corral("run", "--", "/bin/true", uid=uid, profile=profile).returncode == 0


def test_findings_that_an_export_assumes_are_proven_in_a_container(said):
    """Check that the findings in `PROVEN` are proven in a container. `corral export kubernetes`
    assumes them, because it cannot probe inside the pod.
    """
    from corral.export.pod import PROVEN

    found = json.loads(said["doctor"][1])["findings"]
    assert set(PROVEN) <= {one["capability"] for one in found if one["status"] == "proven"}
