"""Without namespaces: what still works, what is refused, what is said, and that nothing is left."""

from __future__ import annotations

import glob
import json
import os
import select
import signal
import subprocess
import venv

import pytest
from traces import PATIENCE

from corral.messages.client import Client

pytestmark = pytest.mark.parametrize("tier", ["bare"], indirect=True)
PIPE = subprocess.PIPE


def given(user, path, mode=0o700):
    path.mkdir(mode=mode)
    os.chown(path, user.owner, user.owner)
    return str(path)


def start(user, *command, flags=(), **options):
    argv = user.corral_argv("run", *flags, "--", *command)
    return user.popen(argv, **{"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, **options})


# What still works.


def test_this_is_the_tier(user):
    """The control of this file: its walls are other ones than those of a host with namespaces."""
    explained = json.loads(user.corral("explain", "--json", "--", "/bin/true").stdout)
    walls = {held["control"]: held["mechanism"] for held in explained["controls"]}
    assert walls["filesystem"] == "landlock"
    assert walls["network"] == "seccomp socket families"
    assert walls["tree"].startswith("guardian")
    steps = [step["step"] for step in explained["steps"]]
    assert "namespaces" not in steps
    assert "subreaper" in steps


def test_a_conversation_with_a_server(user):
    """corral's own demonstration server, by its module, from the directory of packages."""
    command = (user.python, "-B", "-m", "corral.demo.server")
    process = start(user, *command, cwd=user.package)
    client = Client(process.stdout, process.stdin)
    assert client.initialize()["serverInfo"]
    assert "add" in client.list_tools()
    assert "5" in client.call_tool("add", {"a": 2, "b": 3}).text
    denied = client.call_tool("read_file", {"path": "/etc/shadow"})
    assert "EACCES" in denied.text
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


def test_python_with_threads_and_its_own_space(user):
    code = """
import sqlite3, ssl, tempfile, threading
done = []
threads = [threading.Thread(target=done.append, args=(n,)) for n in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
with tempfile.TemporaryDirectory() as place:
    base = sqlite3.connect(place + "/base.db")
    base.execute("create table t (x)")
    base.commit()
    inside = place.startswith(os.environ["TMPDIR"])
with open(os.path.join(os.environ["HOME"], "note"), "w") as file:
    file.write("x")
ssl.create_default_context()
answer = [len(done), inside, os.listdir(os.environ["HOME"]), os.getcwd() == os.environ["HOME"]]
"""
    assert user.inside(code) == [16, True, ["note"], True]
    assert user.inside(code, flags=("--allow-subprocess",)) == [16, True, ["note"], True]


def test_node(user):
    script = 'const {Worker} = require("worker_threads"); new Worker("1", {eval: true}).on("exit", c => console.log(c))'
    done = user.run("node", "-e", script)
    assert (done.returncode, done.stdout) == (0, b"0\n"), done.stderr


def test_a_virtual_environment(user, scratch):
    made = scratch / "venv"
    venv.EnvBuilder(symlinks=True).create(made)
    python = made / "bin/python3"
    python.unlink()
    python.symlink_to(os.path.realpath(user.python))
    config = made / "pyvenv.cfg"
    config.write_text(f"home = {os.path.dirname(os.path.realpath(user.python))}\n")
    for place in (made, *made.rglob("*")):
        os.chown(place, user.owner, user.owner, follow_symlinks=False)
    done = user.run(str(python), "-c", "import sys; print(sys.prefix)")
    assert (done.returncode, done.stdout.decode().strip()) == (0, str(made)), done.stderr
    # It may be read and not be changed; a write grant around it would allow that, so it is refused.
    write = "import sys; open(sys.prefix + '/x', 'w')"
    assert b"PermissionError" in user.run(str(python), "-c", write).stderr
    done = user.run(str(python), "-c", "print('ran')", flags=("--write", str(scratch)))
    assert (done.returncode, done.stdout) == (125, b"")
    assert f"{made} cannot be held read-only".encode() in done.stderr


def test_processes_and_signals_between_them(user):
    code = """
import signal, subprocess
answer = [subprocess.check_output("echo $((6 * 7)) | cat", shell=True, text=True).strip()]
child = subprocess.Popen(["/bin/sleep", "60"])
child.terminate()
answer.append(child.wait())
"""
    assert user.inside(code, flags=("--allow-subprocess",)) == ["42", -signal.SIGTERM]


# What is refused.


def refused(user, *flags, command=("/bin/true",)):
    done = user.run(*command, flags=flags)
    assert (done.returncode, done.stdout) == (125, b""), done.stderr
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("hint: ")
    return lines[0]


def policy_file(user, scratch, text):
    path = scratch / "policy.toml"
    path.write_text(f"version = 1\n{text}")
    os.chown(path, user.owner, user.owner)
    return ("--policy", str(path))


def test_what_cannot_be_held_is_refused_by_name(user, scratch):
    import socket

    address = str(scratch / "agent.sock")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(address)
        os.chown(address, user.owner, user.owner)
        sockets = policy_file(user, scratch, f'[filesystem]\nunix_sockets = ["{address}"]\n')
        said = refused(user, *sockets)
        assert said.startswith("corral: without mount namespaces: ")
        assert f"{address}: unix sockets cannot be told apart" in said
    state = refused(user, *policy_file(user, scratch, "[filesystem]\nstate = true\n"))
    assert "state = true needs a private root" in state
    assert "network" in refused(user, "--allow-net", "api.example.com")
    assert "network" in refused(user, "--listen", "8080")
    assert "disk" in refused(user, "--max-disk", "1M")
    given(user, scratch / "project")
    given(user, scratch / "project/.vscode")
    said = refused(user, "--write", str(scratch / "project"))
    assert f"{scratch}/project/.vscode lies in a grant and cannot be" in said


def test_the_same_policies_without_what_cannot_be_held(user, scratch):
    """The control of the refusals."""
    given(user, scratch / "project")
    for flags in (
        policy_file(user, scratch, "[filesystem]\nstate = false\n"),
        ("--write", str(scratch / "project")),
        ("--max-fds", "64"),
    ):
        assert user.run("/bin/true", flags=flags).returncode == 0, flags


def test_grants_that_roots_target_cannot_use_are_refused(user, scratch):
    """It runs with an id of its own, to which root's files are a stranger's. An ordinary user's does not."""
    closed = scratch / "closed"
    closed.mkdir(mode=0o700)
    (closed / "inner").mkdir(mode=0o755)
    readable = scratch / "readable"
    readable.mkdir(mode=0o755)
    for path in (closed, closed / "inner", readable):
        os.chown(path, user.uid, user.uid)
    write = "open(sys.argv[1] + '/made', 'w').close()"
    if user.uid:
        for path in (closed, closed / "inner", readable):
            assert user.inside(write, str(path), flags=("--write", str(path))) is None
            assert (path / "made").exists()
        return
    who = f"uid {user.owner}, as which the target runs"
    for kind, path, culprit in (
        ("--write", closed, closed),
        ("--read", closed, closed),
        ("--write", closed / "inner", closed),
        ("--write", readable, readable),
    ):
        said = refused(user, kind, str(path))
        assert said == f"corral: without mount namespaces: {culprit} is closed to {who}"
    assert (
        user.inside(
            "answer = os.listdir(sys.argv[1])", str(readable), flags=("--read", str(readable))
        )
        == []
    )
    readable.chmod(0o777)
    assert user.inside(write, str(readable), flags=("--write", str(readable))) is None
    assert os.listdir(readable) == ["made"]


# What is said.


def test_explain_says_what_can_be_seen(user):
    alone = user.corral("explain", "--", "/bin/true").stdout.decode()
    assert "names and metadata of the host's files can be seen" in alone
    assert "lists the host's processes" not in alone
    many = user.corral("explain", "--allow-subprocess", "--", "/bin/true").stdout.decode()
    assert "names and metadata of the host's files can be seen" in many
    assert "/proc, which lists the host's processes and their command lines" in many


def reported(user, scratch, *flags):
    path = scratch / "report.json"
    assert user.run("/bin/true", flags=("--report", str(path), *flags)).returncode == 0
    return {held["control"]: held for held in json.loads(path.read_text())["controls"]}


def test_the_report_says_what_can_be_seen(user, scratch):
    held = reported(user, scratch)
    seen = "names and metadata of the host's files can be seen"
    shared = "the kernel's quotas of the user are shared with the host"
    assert held["filesystem"]["why"] == f"{seen}; {shared}"
    assert (held["filesystem"]["status"], held["tree"]["status"]) == ("verified", "applied")
    assert held["disk"]["status"] == "degraded"


def test_the_report_says_that_processes_can_be_seen(user, scratch):
    held = reported(user, scratch, "--allow-subprocess")
    assert "processes" in held["filesystem"]["why"]


def test_doctor_names_both_sides(user):
    found = json.loads(user.corral("doctor", "--json").stdout)["findings"]
    status = {finding["capability"]: finding["status"] for finding in found}
    for name in ("user_namespaces", "mount_namespace", "pid_namespace", "network_namespace"):
        assert status[name] == "absent"
    for name in ("landlock", "landlock_wall", "guardian", "seccomp", "exec_cookie"):
        assert status[name] == "proven"


def test_doctor_does_not_say_that_run_refuses_where_it_runs(user):
    said = user.corral("doctor").stdout.decode()
    assert user.run("/bin/true").returncode == 0
    assert "refuses" not in said


# Nothing is left.

HOLD = """
import os, signal, sys
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
"""
# Each generation is gone when the next one has started: nobody can list them all at one time.
CHAIN = """
os.setsid()
os.write(1, b"r")
while True:
    if os.fork():
        os._exit(0)
"""
# The first thread has ended, the process has not: /proc calls it a zombie.
HEADLESS = """
import ctypes, threading
os.setsid()
def stay():
    os.write(1, b"r")
    while True:
        signal.sigtimedwait([], 3600)
threading.Thread(target=stay).start()
ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
"""
# Orphans of every kind of child, in sessions of their own.
ORPHANS = """
import ctypes
for signal_of_death in (17, 0):
    number = 56 if os.uname().machine == "x86_64" else 220
    if ctypes.CDLL(None).syscall(number, signal_of_death, 0, 0, 0, 0) == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(1, b"r")
            while True:
                signal.pause()
        os._exit(0)
os._exit(0)
"""
KINDS = {"chain": (CHAIN, 1), "headless": (HEADLESS, 1), "orphans": (ORPHANS, 2)}


def held_by(process, kind):
    """Until all of them have been started."""
    assert process.stdout.read(KINDS[kind][1]) == b"r" * KINDS[kind][1], process.stderr.read()


def gone(process):
    """Every process that had the target's stdout is gone: a living one would keep it open."""
    assert select.select([process.stdout], [], [], PATIENCE)[0]
    assert process.stdout.read() == b""


def swept(user, process):
    """What a killed run could not remove goes with the next one."""
    assert len(private_directories(user, process.pid)) == 1
    assert user.run("/bin/true").returncode == 0
    assert private_directories(user, process.pid) == []


def private_directories(user, pid):
    return glob.glob(f"/tmp/corral-{user.uid}-{pid}-*")


def keeping(kind):
    body = KINDS[kind][0].replace("\n", "\n    ")
    return f"{HOLD}\nif os.fork() == 0:\n    {body}\n"


@pytest.mark.parametrize("kind", KINDS)
def test_descendants_do_not_survive_the_target(user, kind):
    code = keeping(kind) + "sys.stdin.read()"
    process = start(user, user.python, "-c", code, flags=("--allow-subprocess",))
    held_by(process, kind)
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
    gone(process)
    process.stderr.close()
    process.stdout.close()


@pytest.mark.parametrize("kind", KINDS)
def test_descendants_do_not_survive_corral(user, kind):
    code = keeping(kind) + "while True: signal.pause()"
    process = start(user, user.python, "-c", code, flags=("--allow-subprocess",))
    held_by(process, kind)
    process.kill()
    process.wait()
    gone(process)
    swept(user, process)
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


@pytest.mark.parametrize("kind", ["headless", "orphans"])
def test_outside_they_survive(user, kind):
    """The control: these do outlive their parents. (The chain would outrun us, too.)"""
    process = user.popen([user.python, "-c", keeping(kind)], stdout=PIPE, stderr=PIPE, stdin=PIPE)
    held_by(process, kind)
    assert process.wait(PATIENCE) == 0
    assert not select.select([process.stdout], [], [], 0)[0]
    # By thread: the first one's descriptors went with it.
    holders = [
        path.split("/")[2]
        for path in glob.glob("/proc/[0-9]*/task/[0-9]*/fd/1")
        if _same(path, process.stdout.fileno())
    ]
    for pid in {int(pid) for pid in holders} - {os.getpid()}:
        os.kill(pid, signal.SIGKILL)
    gone(process)
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


def _same(path, fd):
    try:
        return os.stat(path).st_ino == os.fstat(fd).st_ino
    except OSError:
        return False


def parent_of(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b") ")[2].split()[1])


def test_the_target_dies_with_its_guardian(user):
    code = HOLD + "\nprint(os.getpid(), flush=True)\nwhile True: signal.pause()"
    process = start(user, user.python, "-c", code)
    target = int(process.stdout.readline())
    guardian = parent_of(target)
    assert parent_of(guardian) == process.pid
    os.kill(guardian, signal.SIGKILL)
    gone(process)
    assert process.wait(PATIENCE) == 128 + signal.SIGKILL
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


DEEP = """
import os, sys
os.chdir(os.environ["HOME"])
for _ in range(3000):
    os.mkdir("d", 0o700)
    os.chdir("d")
os.chdir(os.environ["TMPDIR"])
os.mkdir("closed", 0o300)
open("closed/file", "w").close()
os.mkdir("closed/inner", 0o300)
os.mkdir("closed/inner/most", 0o000)
os.symlink("/usr", "link")
os.mkfifo("fifo", 0o000)
os.mkdir(os.environ["TMPDIR"] + "/beside", 0o500)
print("made", flush=True)
sys.stdin.read()
"""


def test_the_private_directory_goes_whatever_is_in_it(user):
    process = start(user, user.python, "-c", DEEP)
    assert process.stdout.readline() == b"made\n", process.stderr.read()
    (directory,) = private_directories(user, process.pid)
    seen = os.stat(directory)
    assert (seen.st_uid, seen.st_mode & 0o777) == (
        user.uid,
        0o700 if user.uid == user.owner else 0o710,
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert private_directories(user, process.pid) == []
    assert os.path.exists("/usr/bin/env")


def test_the_private_directory_of_a_killed_run_goes_with_the_next(user):
    process = start(user, user.python, "-c", DEEP)
    assert process.stdout.readline() == b"made\n", process.stderr.read()
    process.kill()
    process.wait()
    gone(process)
    swept(user, process)
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


def test_proc_stays_readable_when_memory_gets_short(user):
    """Rules for /proc belong to inodes that only live as long as somebody holds them."""
    if os.geteuid():
        pytest.skip("only root can make the kernel forget what it cached")
    code = """
import sys
def read():
    try:
        return len(open("/proc/self/status").read()) > 0 < len(open("/proc/meminfo").read())
    except OSError as error:
        return error.strerror
print(read(), flush=True)
sys.stdin.readline()
print(read(), flush=True)
"""
    process = start(user, user.python, "-c", code)
    assert process.stdout.readline() == b"True\n"
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as switch:
        switch.write("2")
    out, _ = process.communicate(b"\n", timeout=PATIENCE)
    assert out == b"True\n"


def test_ports_on_the_hosts_loopback_are_refused(user):
    """Without a network namespace there is no port of the target's own to open."""
    done = user.run("/bin/true", flags=("--listen", "8123"))
    assert done.returncode == 125
    assert b"network: no network_namespace" in done.stderr
    assert user.run("/bin/true").returncode == 0
