"""Test runs without namespaces: programs either work or are refused with a reason, reports are
correct, and no files or processes are left over.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import pathlib
import select
import shutil
import signal
import stat
import subprocess
import tempfile
import venv

import pytest
from traces import PATIENCE

from corral.messages.client import Client
from users import MAIN

pytestmark = pytest.mark.parametrize("tier", ["bare"], indirect=True)
PIPE = subprocess.PIPE
OTHER_USER = 4321


def given(user, path, mode=0o700):
    path.mkdir(mode=mode)
    os.chown(path, user.owner, user.owner)
    return str(path)


def start(user, *command, flags=(), **options):
    argv = user.corral_argv("run", *flags, "--", *command)
    return user.popen(argv, **{"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, **options})


# Programs that work


def test_runs_of_this_module_have_no_namespaces(user):
    """Check that the runs in this file really do not use namespaces."""
    explained = json.loads(user.corral("explain", "--json", "--", "/bin/true").stdout)
    walls = {held["control"]: held["mechanism"] for held in explained["controls"]}
    assert walls["filesystem"] == "landlock + notification"
    assert walls["network"] == "seccomp socket families"
    assert walls["tree"].startswith("guardian")
    steps = [step["step"] for step in explained["steps"]]
    assert "namespaces" not in steps
    assert "subreaper" in steps


def test_corrals_demo_server_answers_its_client(user):
    """Talk to corral's demo server, started as a Python module."""
    command = (user.python, "-B", "-m", "corral.demo.server")
    process = start(user, *command, cwd=user.package)
    client = Client(process.stdout, process.stdin)
    assert client.initialize()["serverInfo"]
    assert "add" in [tool["name"] for tool in client.list_all("tools/list")]
    assert "5" in client.call_tool("add", {"a": 2, "b": 3}).text
    denied = client.call_tool("read_file", {"path": "/etc/shadow"})
    assert "EACCES" in denied.text
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


def test_a_python_target_can_use_threads_and_private_directories(user):
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


@pytest.mark.rig("node")
def test_node_starts(user):
    script = 'const {Worker} = require("worker_threads"); new Worker("1", {eval: true}).on("exit", c => console.log(c))'
    done = user.run("node", "-e", script)
    assert (done.returncode, done.stdout) == (0, b"0\n"), done.stderr


def test_a_virtual_environment_works(user, scratch):
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
    # The target's interpreter is in this virtual environment, so the environment must be read-only.
    # Without namespaces corral cannot make a part of a write grant read-only, so it refuses the
    # grant of `scratch`, which contains the environment.
    write = "import sys; open(sys.prefix + '/x', 'w')"
    assert b"PermissionError" in user.run(str(python), "-c", write).stderr
    done = user.run(str(python), "-c", "print('ran')", flags=("--write", str(scratch)))
    assert (done.returncode, done.stdout) == (125, b"")
    assert f"{made} cannot be read-only".encode() in done.stderr


def test_processes_can_signal_each_other(user):
    code = """
import signal, subprocess
answer = [subprocess.check_output("echo $((6 * 7)) | cat", shell=True, text=True).strip()]
child = subprocess.Popen(["/bin/sleep", "60"])
child.terminate()
answer.append(child.wait())
"""
    assert user.inside(code, flags=("--allow-subprocess",)) == ["42", -signal.SIGTERM]


COPY = """
set -e
echo text > file
chmod 640 file
touch -d 2020-01-01 file
mkdir tree
echo text > tree/file
cp -p file copy
cp -a tree whole
install -p -m 600 file installed
stat -c '%a %Y' copy installed
cat whole/file
"""


def test_cp_and_install_copy_modes_and_times(user):
    """Copy files with programs that also set access control lists. A denial would make the programs
    fail, so corral answers as if the file system did not support the lists.
    """
    done = user.run("/bin/sh", "-c", COPY, flags=("--allow-subprocess",))
    assert (done.returncode, done.stdout) == (0, b"640 1577836800\n600 1577836800\ntext\n"), (
        done.stderr
    )


STATE = """
directory = os.environ["STATE_DIRECTORY"]
path = os.path.join(directory, "counter")
count = int(open(path).read()) + 1 if os.path.exists(path) else 1
with open(path, "w") as file:
    file.write(str(count))
def moved():
    os.rename(sys.argv[1] + "/inner", directory + "/inner")
def listed():
    return os.listdir(os.path.dirname(directory))
answer = [count, os.environ["HOME"] == directory == os.getcwd(), os.environ["TMPDIR"] != directory]
for act in (moved, listed):
    try:
        act()
    except OSError as error:
        answer.append(error.errno)
"""


@pytest.fixture
def kept(user):
    """Yield environment variables that make corral store the homes of servers (`--state`) in a
    directory of the test. Every user can enter this directory, because root's target runs as
    another user.
    """
    path = pathlib.Path(tempfile.mkdtemp(prefix="state-"))
    path.chmod(0o755)
    os.chown(path, user.uid, user.uid)
    yield user.environment(XDG_STATE_HOME=str(path))
    shutil.rmtree(path)


def homes_of(user, env):
    done = user.corral("cache", "homes", "--json", env=env)
    return [one["path"] for one in json.loads(done.stdout)]


def test_a_kept_home_belongs_to_one_server(user, scratch, kept):
    """Check that a server cannot read or list another server's home, or move a directory from a
    grant into its own home.
    """
    given(user, scratch / "granted")
    given(user, scratch / "granted/inner")
    flags = (
        *policy_file(user, scratch, "[filesystem]\nstate = true\n"),
        "--write",
        str(scratch / "granted"),
    )
    arguments = (STATE, str(scratch / "granted"))
    first = user.inside(*arguments, flags=flags, env=kept)
    assert first == [1, True, True, errno.EXDEV, errno.EACCES]
    assert user.inside(*arguments, flags=flags, env=kept)[0] == 2
    assert user.inside("answer = 'STATE_DIRECTORY' in os.environ", env=kept) is False
    [home] = homes_of(user, kept)
    other = f"""{STATE}
for name in ("", "/counter", "/planted"):
    try:
        os.listdir(sys.argv[2]) if not name else open(sys.argv[2] + name, "r+" if "c" in name else "x")
    except OSError as error:
        answer.append(error.errno)
"""
    found = user.inside(other, str(scratch / "granted"), home, flags=flags, env=kept)
    assert (found[0], found[5:]) == (1, [errno.EACCES] * 3)
    assert "counter" in os.listdir(home)
    assert "planted" not in os.listdir(home)
    assert user.inside(*arguments, flags=flags, env=kept)[0] == 3


CLOSE = "answer = os.listdir('.'); open(f'file{len(answer)}', 'w').close(); os.chmod('.', 0)"


def test_a_kept_home_is_closed_to_other_users_and_can_be_removed(user, kept):
    """Let a server remove all permissions of the home that it keeps between runs. The next run must
    be able to use the home again. The permissions of the directory that contains the home must keep
    other users out.
    """
    outputs = [user.inside(CLOSE, flags=("--state",), env=kept) for _ in range(2)]
    assert outputs == [[], ["file0"]]
    [home] = homes_of(user, kept)
    above, name = os.stat(os.path.dirname(home)), os.stat(f"{home}.server")
    assert (os.stat(home).st_uid, above.st_uid, name.st_uid) == (user.owner, user.uid, user.uid)
    assert stat.S_IMODE(above.st_mode) == (0o710 if user.owner != user.uid else 0o700)
    assert stat.S_IMODE(name.st_mode) == 0o600
    assert user.corral("cache", "rm-home", home, env=kept).returncode == 0
    assert homes_of(user, kept) == []
    assert os.listdir(os.path.dirname(home)) == []


@pytest.mark.parametrize("user", ["root"], indirect=True)
def test_a_server_cannot_open_its_kept_home_to_other_users(user, kept):
    """Let a server give everyone access to the home that it keeps between runs. Other users must
    still not reach this home, because the server could otherwise exchange data with them.
    """
    opened = "answer = os.listdir('.'); open('data', 'w').close(); os.chmod('.', 0o777)"
    assert user.inside(opened, flags=("--state",), env=kept) == []
    [home] = homes_of(user, kept)
    other = {"user": OTHER_USER, "group": OTHER_USER, "extra_groups": []}

    def can_list():
        return subprocess.call(["/bin/ls", home], stdout=PIPE, stderr=PIPE, **other) == 0

    assert not can_list()
    # Sanity checks: the server still finds its files. The other user can list the home after the
    # directory above it has been opened.
    assert user.inside(opened, flags=("--state",), env=kept) == ["data"]
    os.chmod(os.path.dirname(home), 0o711)
    assert can_list()


@pytest.mark.parametrize("user", ["root"], indirect=True)
def test_other_users_cannot_plant_the_homes_of_roots_targets(user, scratch, kept):
    """Let another user own the directory in which corral stores the homes of servers, or be able to
    write to it. corral must then refuse `--state`. It must always refuse to grant such a home or a
    directory that contains one.
    """
    top = pathlib.Path(kept["XDG_STATE_HOME"])
    homes = top / "corral-homes"

    def said(*flags):
        done = user.run("/bin/true", flags=flags, env=kept)
        assert (done.returncode, done.stdout) == (125, b""), done.stderr
        return done.stderr.decode()

    homes.mkdir()
    os.chown(homes, OTHER_USER, OTHER_USER)
    assert f"{homes} belongs to user {OTHER_USER}" in said("--state")
    homes.rmdir()
    homes.symlink_to(scratch)
    # The scratch directory belongs to the target's user, and the error must name this user's id.
    assert str(user.owner) in said("--state")
    homes.unlink()
    (top / "elsewhere").mkdir()
    homes.symlink_to(top / "elsewhere")
    assert f"{homes} is not a directory that only you can write to" in said("--state")
    homes.unlink()
    homes.mkdir()
    homes.chmod(0o777)
    assert f"{homes} is not a directory that only you can write to" in said("--state")
    homes.chmod(0o711)
    assert user.run("/bin/true", flags=("--state",), env=kept).returncode == 0
    [home] = homes_of(user, kept)
    assert "belongs to the homes of servers" in said("--read", home)
    assert "the homes of servers" in said("--write", str(top))
    assert f"{homes} is in a grant, but cannot be hidden" in said("--read", str(top))
    os.chown(home, OTHER_USER, OTHER_USER)
    assert f"it belongs to user {OTHER_USER}, not to {user.owner}" in said("--state")
    os.chown(home, user.owner, user.owner)
    top.chmod(0o700)
    assert f"{top} is closed to uid {user.owner}" in said("--state")
    top.chmod(0o755)
    assert user.run("/bin/true", flags=("--state",), env=kept).returncode == 0


# Refusals


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


def test_an_unenforceable_limit_is_refused_by_name(user, scratch):
    assert "disk" in refused(user, "--max-disk", "1M")
    given(user, scratch / "project")
    given(user, scratch / "project/.vscode")
    said = refused(user, "--write", str(scratch / "project"))
    assert f"{scratch}/project/.vscode is in a grant, but cannot be" in said


def test_policies_run_without_the_part_that_is_refused(user, scratch):
    """Sanity check for the refusals above: run the same policies without the refused part."""
    given(user, scratch / "project")
    for flags in (
        policy_file(user, scratch, "[filesystem]\nstate = false\n"),
        ("--write", str(scratch / "project")),
        ("--max-fds", "64"),
    ):
        assert user.run("/bin/true", flags=flags).returncode == 0, flags


def test_grants_that_roots_target_cannot_use_are_refused(user, scratch):
    """Grant directories of the user who runs corral. An ordinary user's target can use all of them.
    Root's target has another user id, so corral must refuse directories that this id cannot use.
    """
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
    who = f"uid {user.owner}, the target's user id"
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


# The next two tests run as root without capabilities, as in a container that drops all of them.

NO_CAPABILITIES = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
from corral.abi import linux as abi
for number in range(64):
    try:
        abi.prctl(abi.PR_CAPBSET_DROP, number)
    except OSError:
        break
os.execv(sys.argv[1], sys.argv[1:])
"""
OWNED = """
def opened(path):
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return error.errno
    return 0
with open("/proc/self/status") as file:
    rights = [line.split()[1] for line in file if line.startswith(("CapEff", "CapPrm"))]
answer = [os.getresuid(), rights, [opened(path) for path in sys.argv[1:]]]
"""


@pytest.mark.parametrize("granted", [False, True])
def test_root_without_capabilities_is_an_ordinary_user(user, tmp_path_factory, granted):
    """Run as root without capabilities. The target has root's user id and owns root's files, but
    must be able to change only granted files.
    """
    if user.uid:
        pytest.skip("only root can run this test")
    capless = [user.python, "-c", NO_CAPABILITIES, str(user.package)]
    scratch = tmp_path_factory.mktemp("capless")
    file = scratch / "file"
    file.touch(0o600)
    options = {"env": user.environment(HOME=str(scratch.parent)), "cwd": scratch}
    paths = (
        str(file),
        "/etc/hostname",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
    )
    flags = ("--write", str(scratch)) if granted else ()
    script = f"import json, os, sys\n{OWNED}\nprint(json.dumps(answer))"
    argv = [*capless, *user.corral_argv("run", *flags, "--", user.python, "-c", script, *paths)]
    pipe = subprocess.PIPE
    process = user.popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, **options)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    none = "0" * 16
    written = 0 if granted else errno.EACCES
    assert json.loads(out) == [[0, 0, 0], [none, none], [written, *[errno.EACCES] * 3]]
    assert private_directories(user, process.pid) == []
    free = user.outside(OWNED, *paths, host=capless, **options)
    assert free == [[0, 0, 0], [none, none], [0, 0, 0, 0]]


def test_root_without_capabilities_is_confined_by_landlock(user):
    """Check that corral uses Landlock if root can make namespaces, but cannot give the target
    another user id in them.
    """
    if user.uid:
        pytest.skip("only root can run this test")
    argv = [user.python, "-c", NO_CAPABILITIES, str(user.package)]
    argv += [user.python, "-c", MAIN, str(user.package), "doctor", "--json"]
    process = user.popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    found = {
        one["capability"]: one for one in json.loads(process.communicate(timeout=60)[0])["findings"]
    }
    assert found["user_namespaces"]["status"] == "proven"
    assert found["mount_namespace"]["status"] == "absent"
    assert "the target cannot get another user id" in found["mount_namespace"]["evidence"]
    assert found["landlock_wall"]["status"] == "proven"


# Reports


def test_explain_names_what_the_target_can_see_of_the_host(user):
    alone = user.corral("explain", "-v", "--", "/bin/true").stdout.decode()
    assert "names and metadata of the host's files can be seen" in alone
    assert "lists the host's processes" not in alone
    many = user.corral("explain", "-v", "--allow-subprocess", "--", "/bin/true").stdout.decode()
    assert "names and metadata of the host's files can be seen" in many
    assert "/proc, which lists the host's processes and their command lines" in many


def reported(user, scratch, *flags):
    path = scratch / "report.json"
    assert user.run("/bin/true", flags=("--report", str(path), *flags)).returncode == 0
    return {held["control"]: held for held in json.loads(path.read_text())["controls"]}


def test_the_report_names_what_the_target_can_see_of_the_host(user, scratch):
    held = reported(user, scratch)
    seen = "names and metadata of the host's files can be seen"
    shared = "the user's kernel quotas are shared with the host"
    assert held["filesystem"]["why"] == f"{seen}; {shared}"
    assert (held["filesystem"]["status"], held["tree"]["status"]) == ("verified", "applied")
    assert held["disk"]["status"] == "degraded"


def test_the_report_says_that_processes_are_visible(user, scratch):
    held = reported(user, scratch, "--allow-subprocess")
    assert "processes" in held["filesystem"]["why"]


def test_doctor_names_missing_features_and_working_ones(user):
    found = json.loads(user.corral("doctor", "--json").stdout)["findings"]
    status = {finding["capability"]: finding["status"] for finding in found}
    for name in ("user_namespaces", "mount_namespace", "pid_namespace", "network_namespace"):
        assert status[name] == "absent"
    for name in ("landlock", "landlock_wall", "guardian", "seccomp", "exec_cookie"):
        assert status[name] == "proven"


def test_doctor_does_not_claim_that_runs_are_refused(user):
    said = user.corral("doctor").stdout.decode()
    assert user.run("/bin/true").returncode == 0
    assert "refuses" not in said


# Leftovers

HOLD = """
import os, signal, sys
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
"""
# Each process ends after it has forked the next one. A listing of the processes may therefore miss
# the only one that is alive.
CHAIN = """
os.setsid()
os.write(1, b"r")
while True:
    if os.fork():
        os._exit(0)
"""
# In this program the first thread ends and another thread still runs. /proc then shows the process
# as a zombie, although it is alive.
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
# This program starts two children. One sends SIGCHLD to its parent when it ends, the other sends no
# signal. Each child leaves an orphan in a new session.
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


def wait_for_start(process, kind):
    """Wait until every process of the program `KINDS[kind]` has written its byte."""
    assert process.stdout.read(KINDS[kind][1]) == b"r" * KINDS[kind][1], process.stderr.read()


def wait_for_end(process):
    """Wait until all processes of the tree have ended, and so have closed the pipe at stdout."""
    assert select.select([process.stdout], [], [], PATIENCE)[0]
    assert process.stdout.read() == b""


def check_next_run_removes_leftovers(user, process):
    """Check that the next run removes what a killed run left behind."""
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
    wait_for_start(process, kind)
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
    wait_for_end(process)
    process.stderr.close()
    process.stdout.close()


@pytest.mark.parametrize("kind", KINDS)
def test_descendants_do_not_survive_corral(user, kind):
    code = keeping(kind) + "while True: signal.pause()"
    process = start(user, user.python, "-c", code, flags=("--allow-subprocess",))
    wait_for_start(process, kind)
    process.kill()
    process.wait()
    wait_for_end(process)
    check_next_run_removes_leftovers(user, process)
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


@pytest.mark.parametrize("kind", ["headless", "orphans"])
def test_descendants_survive_their_parent_without_corral(user, kind):
    """Sanity check for the tests above: start the same processes without corral. They must outlive
    their parents. The endless chain of forks is left out, because the test could not end it.
    """
    process = user.popen([user.python, "-c", keeping(kind)], stdout=PIPE, stderr=PIPE, stdin=PIPE)
    wait_for_start(process, kind)
    assert process.wait(PATIENCE) == 0
    assert not select.select([process.stdout], [], [], 0)[0]
    # Once the first thread has ended, /proc/PID/fd is empty, so look at each thread's descriptors.
    holders = [
        path.split("/")[2]
        for path in glob.glob("/proc/[0-9]*/task/[0-9]*/fd/1")
        if _same(path, process.stdout.fileno())
    ]
    for pid in {int(pid) for pid in holders} - {os.getpid()}:
        os.kill(pid, signal.SIGKILL)
    wait_for_end(process)
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
    wait_for_end(process)
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


def test_the_private_directory_is_removed_whatever_is_in_it(user):
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


def test_the_next_run_removes_a_killed_runs_private_directory(user):
    process = start(user, user.python, "-c", DEEP)
    assert process.stdout.readline() == b"made\n", process.stderr.read()
    process.kill()
    process.wait()
    wait_for_end(process)
    check_next_run_removes_leftovers(user, process)
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


def test_proc_stays_readable_when_memory_gets_short(user):
    """Make the kernel drop unused inodes. Landlock attaches the rules for files in /proc to their
    inodes, so the rules could be lost. The target must still be able to read these files.
    """
    if os.geteuid():
        pytest.skip("only root can empty the kernel's caches")
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
