"""Attack a user's corral as another user of the host.

The attacker plants files, symlinks, pipes and hard links in shared directories, tries to reach live
runs, and plants files that root finds if it runs corral with an ordinary user's HOME. Each test
also checks that the user's own file works.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile

import pytest
from traces import children, readable

from users import User, make_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can use a second user")
ATTACKER = 65531
SHARED = ("/tmp", "/var/tmp", "/dev/shm")


@pytest.fixture(scope="module")
def attacker(package):
    home = package.parent / "home-attacker"
    home.mkdir(mode=0o755)
    os.chown(home, ATTACKER, ATTACKER)
    return User("attacker", ATTACKER, home, package)


@pytest.fixture
def root(package):
    return make_user("root", package)


@pytest.fixture
def sticky(tmp_path_factory):
    """Return a directory like /tmp, where the attacker may plant files."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="two-users-"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def give(path: pathlib.Path, uid: int) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, uid, uid, follow_symlinks=False)


def listing(top: pathlib.Path) -> dict[str, tuple[int, ...]]:
    return {
        str(one.relative_to(top)): (seen.st_uid, seen.st_mode, seen.st_ino, seen.st_size)
        for one in top.rglob("*")
        if (seen := one.lstat())
    }


# Attacks on files that the user names on the command line.


def plant(kind: str, path: pathlib.Path, user: User) -> pathlib.Path | None:
    """Plant a file, pipe or link at `path` as the attacker. Return the user's own file, to which the
    link leads.
    """
    own = user.home / "own"
    own.touch(mode=0o600)
    os.chown(own, user.uid, user.uid)
    if kind == "pipe":
        os.mkfifo(path, 0o666)
    elif kind == "link":
        path.symlink_to(own)
    elif kind == "hard link":
        os.link(own, path)
    elif kind == "file":
        path.touch()
    if kind in {"pipe", "file"}:
        path.chmod(0o666)
    if kind in {"pipe", "link", "file"}:
        os.chown(path, ATTACKER, ATTACKER, follow_symlinks=False)
    return own


@pytest.mark.parametrize("flag", ["--report", "--audit"])
@pytest.mark.parametrize("kind", ["pipe", "link", "hard link", "file"])
def test_a_file_that_another_user_put_in_the_way_is_not_written(ordinary, sticky, flag, kind):
    """Plant a file, pipe or link where corral is to write. corral must refuse each of them itself,
    and not rely on the kernel's fs.protected_* sysctls.
    """
    path = sticky / "name"
    own = plant(kind, path, ordinary)
    done = ordinary.run("/bin/true", flags=(flag, str(path)))
    assert done.returncode == 125, done.stderr
    assert str(path).encode() in done.stderr
    assert own.read_bytes() == b""
    assert kind == "pipe" or path.read_bytes() == b""


@pytest.mark.parametrize("flag", ["--report", "--audit"])
def test_an_own_file_in_a_shared_directory_is_written(ordinary, sticky, flag):
    """Sanity check for the test above: write the user's own file twice."""
    path = sticky / "name"
    for _ in range(2):
        done = ordinary.run("/bin/true", flags=(flag, str(path)))
        assert done.returncode == 0, done.stderr
    assert path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600


# In the tests below, root runs corral with files and directories of an ordinary user.


RUN = ("run", "--read", "/usr/share", "--", "/bin/cat", "/etc/shadow")
KEEP = ("run", "--state", "--", "/bin/true")
LONG = pytest.mark.rig("long")


@pytest.mark.parametrize(
    ("planted", "commands"),
    [
        ("nothing", (RUN,)),
        ("links", (KEEP, ("cache", "gc"), ("clean",))),
        pytest.param("links", (RUN, ("doctor",)), marks=LONG),
        pytest.param("links below", (RUN, KEEP, ("cache", "gc"), ("clean",)), marks=LONG),
        pytest.param("open directories", (RUN, KEEP, ("cache", "gc"), ("clean",)), marks=LONG),
    ],
)
def test_root_creates_nothing_in_a_users_home(attacker, root, sticky, planted, commands):
    """Run as root with a user's HOME. Root must not create files there: the user could not remove
    them, and a planted symlink could redirect them to any directory.
    """
    sticky.chmod(0o755)
    home, valuable = sticky / "home", sticky / "valuable"
    places = [home / ".cache", home / ".config", home / ".local", home / ".local/state"]
    home.mkdir()
    valuable.mkdir()
    for path in () if planted == "nothing" else places[:3]:
        if planted == "links":
            path.symlink_to(valuable)
        else:
            path.mkdir()
    if planted == "links below":
        places[3].mkdir()
        for path in (places[0], places[1], places[3]):
            (path / "corral").symlink_to(valuable)
    give(home, ATTACKER)
    if planted == "open directories":
        for path in places[:3]:
            path.chmod(0o777)
    before = listing(sticky)
    for words in commands:
        done = root.corral(*words, env=root.environment(HOME=str(home)))
        assert b"Traceback" not in done.stderr, done.stderr
        assert (done.returncode == 0) == (words == ("clean",) or words == ("doctor",)), words
        assert listing(sticky) == before, words


def test_root_keeps_its_files_in_its_own_home(root):
    """Sanity check for the test above: in its own home, root does create files."""
    assert root.run("/bin/true").returncode == 0
    assert {path.name for path in (root.home / ".cache/corral").iterdir()} >= {"findings", "runs"}


@pytest.mark.parametrize("owner", [ATTACKER, 65534, 0])
def test_root_does_not_follow_its_own_link_to_a_user(sticky, owner):
    """Use root's symlink to another user's directory. Root must not create a private directory
    through it. Sanity check: a symlink to root's own directory works.
    """
    from corral.abi.private_directory import make_private_directory

    (sticky / "theirs").mkdir()
    os.chown(sticky / "theirs", owner, owner)
    (sticky / "link").symlink_to(sticky / "theirs")
    refused = pytest.raises(PermissionError, match=f"belongs to user {owner}")
    with refused if owner else contextlib.nullcontext():
        make_private_directory(str(sticky / "link/new"))
    assert os.listdir(sticky / "theirs") == ([] if owner else ["new"])


PLANT = """
try:
    os.symlink("/etc/hosts", os.path.join(sys.argv[1], "note"))
    answer = os.listdir(sys.argv[1])
except PermissionError:
    answer = "denied"
"""


def test_another_user_cannot_plant_links_in_the_directory_of_roots_demo(root, attacker):
    """Try to plant a symlink in the directory of root's demo. The demo would follow the symlink
    when it tries its acts outside the sandbox.
    """
    from corral.demo.decoys import Decoys

    with contextlib.ExitStack() as stack:
        made = Decoys(stack)
        assert attacker.outside(PLANT, made.granted) == "denied"
        bare = make_user("root", root.package, "bare")
        ids = {"user": bare.owner, "group": bare.owner, "extra_groups": []}
        # Sanity check: a process with the user id of the demo's target can plant links.
        allowed = bare.outside(PLANT, made.granted, **ids)
        assert sorted(allowed) == ["fifo", "note", "socket"]


# In the test below, the user's environment variables, such as XDG_CACHE_HOME, name directories in
# which other users can write.


def test_files_that_another_user_planted_are_ignored(ordinary, sticky):
    """Plant a run record as the attacker. corral must ignore it. Sanity check: the same record is
    used if it belongs to the user.
    """
    record = sticky / "corral/runs/1-0123abcd"
    left = pathlib.Path(f"/tmp/corral-{ordinary.uid}-{os.getpid()}-0123abcd")
    record.parent.mkdir(parents=True)
    record.write_text(f"1\n1\n1\n1\n{left}\nplanted")
    left.mkdir(mode=0o700)
    os.chown(left, ordinary.uid, ordinary.uid)
    places = ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")
    env = ordinary.environment(**dict.fromkeys(places, str(sticky)))
    try:
        for owner, removed in ((ATTACKER, []), (ordinary.uid, [str(left)])):
            give(sticky / "corral", owner)
            (sticky / "corral").chmod(0o755)
            record.chmod(0o600)
            done = ordinary.corral("clean", "--json", env=env)
            assert (done.returncode, json.loads(done.stdout)) == (0, removed), done.stderr
    finally:
        if left.exists():
            left.rmdir()


# Attacks on live runs.


ATTACK = """
sys.path.insert(0, sys.argv[1])
import ctypes
from corral.abi import linux as abi

def write(path):
    with open(path, "w") as file:
        file.write("0")

def pidfd(call, *arguments):
    fd = os.pidfd_open(pid)
    try:
        return abi.syscall(call, fd, *arguments)
    finally:
        os.close(fd)

def trace():
    abi.syscall("ptrace", 0x4206, pid, 0, 0)  # PTRACE_SEIZE

ACTS = {
    "signal": lambda: os.kill(pid, 0),
    "signal by pidfd": lambda: pidfd("pidfd_send_signal", 0, None, 0),
    "take a descriptor": lambda: pidfd("pidfd_getfd", 0, 0),
    "enter its namespaces": lambda: pidfd("setns", 0x20000000),
    "trace": trace,
    "compare": lambda: abi.syscall("kcmp", pid, os.getpid(), 0, 0, 0),
    "limit": lambda: abi.syscall("prlimit64", pid, 7, (ctypes.c_uint64 * 2)(3, 3), None),
    "slow down": lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
    "move to a processor": lambda: os.sched_setaffinity(pid, {0}),
    "descriptors": lambda: os.listdir(f"/proc/{pid}/fd"),
    "root": lambda: os.listdir(f"/proc/{pid}/root"),
    "directory": lambda: os.listdir(f"/proc/{pid}/cwd"),
    "program": lambda: os.readlink(f"/proc/{pid}/exe"),
    "environment": lambda: open(f"/proc/{pid}/environ").read(),
    "mappings": lambda: open(f"/proc/{pid}/maps").read(),
    "memory": lambda: open(f"/proc/{pid}/mem", "r+b").close(),
    "call": lambda: open(f"/proc/{pid}/syscall").read(),
    "namespaces": lambda: os.readlink(f"/proc/{pid}/ns/mnt"),
    "first to be killed": lambda: write(f"/proc/{pid}/oom_score_adj"),
}
answer = {}
for pid in map(int, sys.argv[2:]):
    answer[pid] = []
    for name, act in ACTS.items():
        try:
            act()
            answer[pid].append(name)
        except (PermissionError, ProcessLookupError):
            pass
        except OSError as error:
            answer[pid].append(f"{name}: {error}")
"""
LOOK = """
answer = []
for path in sys.argv[1:]:
    for act in (os.listdir, lambda path: os.stat(path + "/home")):
        try:
            answer.append(bool(act(path)))
        except PermissionError:
            answer.append("denied")
"""
ALLOWED = {"signal", "mappings", "descriptors", "environment", "root", "namespaces", "program"}
"""What the owner of a target may do to the target. This is the control for the attacks."""


@contextlib.contextmanager
def live(user: User, *flags: str):
    """Start a target that waits until its input ends. Yield the pids of the supervisor, init and
    the target.
    """
    process = user.popen(
        user.corral_argv("run", *flags, "--", "/bin/sh", "-c", "echo ready; read line"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert readable(process.stdout.fileno()), process.stderr.read()
        assert process.stdout.readline() == b"ready\n", process.stderr.read()
        found = [process.pid]
        while below := children(found[-1]):
            found += below
        assert len(found) >= 3
        yield found
    finally:
        process.communicate(b"\n", timeout=60)


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_a_live_run_is_closed_to_other_users(user, root, attacker):
    """Attack a live run. It must have no named socket. In shared directories it may have one
    directory at most, which must be closed to others and have a random name.
    """
    owner = root if user.uid == 0 else user
    with live(user, "--env", "PRIVATE=value", "--allow-net", "example.com") as pids:
        tried = attacker.outside(ATTACK, str(user.package), *map(str, pids))
        assert tried == {str(pid): [] for pid in pids}
        assert named_sockets(pids) == []
        made = [
            os.path.join(at, name)
            for at in SHARED
            for name in os.listdir(at)
            if f"-{pids[0]}-" in name
        ]
        expected = [f"/tmp/corral-{user.uid}-{pids[0]}-[0-9a-f]{{8}}"] * (user.tier == "bare")
        assert len(made) == len(expected)
        assert all(map(re.fullmatch, expected, made))
        assert attacker.outside(LOOK, *made) == ["denied"] * 2 * len(made)
        # Sanity check: its owner can read the directory.
        assert owner.outside(LOOK, *made) == [True] * 2 * len(made)
        allowed = owner.outside(ATTACK, str(user.package), str(pids[-1]))
        # Sanity check: the run's owner can reach the target
        assert set(allowed[str(pids[-1])]) >= ALLOWED


def named_sockets(pids: list[int]) -> list[str]:
    """Return the named unix sockets and the listening TCP sockets of these processes."""
    found = {os.readlink(entry.path) for pid in pids for entry in os.scandir(f"/proc/{pid}/fd")}
    inodes = {link[8:-1] for link in found if link.startswith("socket:[")}
    assert inodes
    unix = [
        line.split()
        for line in pathlib.Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]
    ]
    tcp = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[7] for row in unix if row[6] in inodes and len(row) > 7] + [
        row[1] for row in tcp if row[9] in inodes
    ]


def test_named_sockets_of_a_process_are_found(sticky):
    """Sanity check for the test above: `named_sockets` finds sockets that this process has
    made.
    """
    with socket.socket(socket.AF_UNIX) as named, socket.socket() as tcp:
        named.bind(str(sticky / "socket"))
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        assert len(named_sockets([os.getpid()])) == 2
