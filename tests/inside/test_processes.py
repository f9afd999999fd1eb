"""Try to see and reach the host's processes, and the sandbox's PID 1, which is a fork of corral."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from attempts import BOTH_TIERS, by_tier, everywhere, inside, outside


@pytest.fixture
def victim(user):
    """Start a process of the same user with a secret in its environment.

    The process lets every other process trace it. Otherwise Yama, a security module of Linux, would
    deny tracing even outside the sandbox.
    """
    anyone = "import ctypes, sys; ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))"
    process = user.popen(
        [user.python, "-c", f"{anyone}; print(flush=True); sys.stdin.read()"],
        env={"VICTIM_TOKEN": "of the host"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **({"user": user.owner, "group": user.owner} if user.owner != user.uid else {}),
    )
    process.stdout.readline()
    yield process
    process.communicate()


LOOK = """
def looked(pid, name):
    path = f"/proc/{pid}/{name}"
    if name in ("root", "fd", "task"):
        os.listdir(path)
    elif name in ("cwd", "exe"):
        os.readlink(path)
    else:
        with open(path, "rb") as file:
            if name != "mem":
                file.read(1)
NAMES = ("environ", "mem", "root", "fd", "cmdline", "maps", "status", "cwd", "exe", "stat", "comm", "task", "mountinfo")
"""


def test_processes_of_the_host_are_not_visible(user, victim):
    """Check that the victim's pid does not exist inside, and that /proc lists only the sandbox's
    own processes.
    """
    code = (
        LOOK
        + """
numbers = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
own = [os.getpid(), *([os.getppid()] if os.getppid() else [])]
def environment(number):
    try:
        with open(f"/proc/{number}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""  # the file cannot be read, or the process has ended
answer = {
    "strangers": [number for number in numbers if number not in own and number > 8],
    "environments": any(b"of the host" in environment(number) for number in numbers),
    "victim": {name: tried(looked, int(sys.argv[1]), name) for name in NAMES},
}
"""
    )
    pid = str(victim.pid)
    free = outside(user, code, pid)
    assert victim.pid in free["strangers"]
    assert free["environments"]
    assert free["victim"] == dict.fromkeys(free["victim"], "done")
    for held in everywhere(user, code, pid):
        assert held == {
            "strangers": [],
            "environments": False,
            "victim": dict.fromkeys(free["victim"], "ENOENT"),
        }


def test_init_cannot_be_read(user):
    code = (
        LOOK
        + """
answer = {name: tried(looked, 1, name) for name in NAMES}
answer["listed"] = "1" in os.listdir("/proc")
answer["own"] = {name: tried(looked, os.getpid(), name) for name in NAMES}
"""
    )
    for held in everywhere(user, code):
        own = held.pop("own")
        # Sanity check: the target can read the files with these names in its own /proc directory.
        assert own == dict.fromkeys(own, "done")
        assert held == {**dict.fromkeys(own, "ENOENT"), "listed": False}


@BOTH_TIERS
def test_init_cannot_be_traced_or_ended(user):
    """Try to trace and end PID 1. The sandbox's seccomp filter denies ptrace and process_vm calls,
    and the kernel drops signals to a PID 1 that has no handlers for them.
    """
    code = """
def read_memory(pid):
    into = ctypes.create_string_buffer(8)
    local = struct.pack("PN", ctypes.addressof(into), 8)
    call("process_vm_readv", pid, local, 1, struct.pack("PN", 0x400000, 8), 1, 0)
answer = {
    "seize": tried(lambda: call("ptrace", 0x4206, 1, 0, 0)),
    "attach": tried(lambda: call("ptrace", 16, 1, 0, 0)),
    "read": tried(lambda: read_memory(1)),
    "take": tried(lambda: call("pidfd_getfd", call("pidfd_open", 1, 0), 3, 0)),
}
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGSEGV, signal.SIGSYS):
    tried(lambda: os.kill(1, number))
answer["alive"] = tried(lambda: os.kill(1, 0))
"""
    for held in everywhere(user, code):
        alive = held.pop("alive")
        assert held == dict.fromkeys(held, "EPERM")
        # "done" and EPERM both mean that PID 1 is alive. EPERM means that Landlock denied the
        # signal, because PID 1 is outside the target's Landlock domain.
        assert alive in {"done", "EPERM"}


@BOTH_TIERS
def test_signals_do_not_reach_the_host(user, victim):
    code = """
pid = int(sys.argv[1])
answer = [
    tried(lambda: os.kill(pid, signal.SIGTERM)),
    tried(lambda: os.kill(-pid, signal.SIGTERM)),
    tried(lambda: call("pidfd_open", pid, 0)),
    tried(lambda: call("prlimit64", pid, 0, struct.pack("=QQ", 1, 1), None)),
    tried(lambda: os.setpriority(os.PRIO_PROCESS, pid, 19)),
    tried(lambda: os.sched_setaffinity(pid, {0})),
]
tried(lambda: os.kill(-1, signal.SIGCONT))
"""
    # Without a PID namespace the victim's pid is valid inside. The target can then get a pidfd of
    # the victim ("done"), but every act on the victim is denied.
    bare = ["EPERM", "ESRCH", "done", "EPERM", "EPERM", "EPERM"]
    expected = by_tier(user, ["ESRCH"] * 6, bare)
    assert everywhere(user, code, str(victim.pid)) == (expected, expected)
    assert victim.poll() is None
    harmless = "answer = tried(lambda: os.kill(int(sys.argv[1]), 0))"
    assert outside(user, harmless, str(victim.pid)) == "done"
    outside(user, "os.kill(int(sys.argv[1]), signal.SIGKILL)", str(victim.pid))
    assert victim.wait(60) == -signal.SIGKILL


@BOTH_TIERS
def test_a_signal_to_all_processes_stays_in_the_sandbox(user, victim):
    """Let the target signal every process, with kill(-1). As a sanity check, a child of the target
    dies. The test does not try kill(-1) outside, because it would end all of the user's processes.
    """
    code = """
reading, writing = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(reading, 1)
    os._exit(0)
os.kill(-1, signal.SIGKILL)
answer = os.waitpid(pid, 0)[1]
"""
    assert inside(user, code, flags=("--allow-subprocess",)) == signal.SIGKILL
    assert victim.poll() is None


@BOTH_TIERS
def test_a_process_of_the_host_cannot_be_made_the_owner_of_a_descriptor(user, victim):
    """Try to make a host process the owner of a pipe's descriptor. The kernel would then send SIGIO
    to this process.
    """
    code = """
import fcntl
reading, writing = os.pipe()
answer = [
    tried(lambda: fcntl.fcntl(reading, 8, int(sys.argv[1]))),
    tried(lambda: fcntl.fcntl(reading, 8, os.getpid())),
]
"""
    assert outside(user, code, str(victim.pid)) == ["done", "done"]
    assert inside(user, code, str(victim.pid)) == [by_tier(user, "ESRCH", "EPERM"), "done"]


def test_the_hosts_name_is_not_visible(user):
    code = "import socket\nanswer = [os.uname().nodename, socket.gethostname(), got('/etc/hostname').strip()]"
    assert inside(user, code) == ["corral"] * 3


def test_the_target_shares_no_namespace_with_the_host(user):
    names = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
    code = f"answer = {{name: os.readlink('/proc/self/ns/' + name) for name in {names!r}}}"
    outer, inner = outside(user, code), inside(user, code)
    assert outer == {name: os.readlink(f"/proc/self/ns/{name}") for name in names}
    assert [name for name in names if outer[name] == inner[name]] == []
