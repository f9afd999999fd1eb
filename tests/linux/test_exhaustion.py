"""Use up a resource of the host before a run starts. The target must not run, and the error must
name the reason.

Each test runs in a new user namespace with its own limits, as a user without other processes.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile

import pytest

from users import User

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can use another user"
)
NOBODY_ELSE = 64_731
OUTER = """
import ctypes, json, os, resource, signal, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
kinds, most, corral = sys.argv[1].split(","), int(sys.argv[2]), json.loads(sys.argv[3])
KINDS = dict(user=0x10000000, mnt=0x20000, uts=0x4000000, ipc=0x8000000, pid=0x20000000, net=0x40000000, cgroup=0x2000000)
user = os.getuid()
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def put(path, text):
    with open(path, "w") as file:
        file.write(text)
check(libc.unshare(KINDS["user"]))
put("/proc/self/setgroups", "deny")
put("/proc/self/gid_map", f"{user} {user} 1")
put("/proc/self/uid_map", f"{user} {user} 1")
def run():
    done = subprocess.run(corral, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr
def hold(kind):
    '''Take one of the kind in a process that waits; its pid, or 0 if there was none left.'''
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            check(libc.inotify_init1(0) if kind == "inotify" else libc.unshare(KINDS[kind]))
            os.write(writing, b"1")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    taken = os.read(reading, 1)
    os.close(reading)
    if not taken:
        os.waitpid(pid, 0)
    return pid if taken else 0
def run_at_last():
    # Tries again until a run succeeds, because the kernel frees the resources of ended processes a little later.
    while (done := run())[0]:
        time.sleep(0.01)
    return done
def exhausted(kind):
    name = {"inotify": "inotify_instances"}.get(kind, f"{kind}_namespaces")
    put(f"/proc/sys/user/max_{name}", str(most))
    before, held = run_at_last(), []
    while len(held) < most:
        pid = hold(kind)
        held += [pid] if pid else []
        time.sleep(0 if pid else 0.01)
    during = run()
    for pid in held:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return before, during, run_at_last()
if kinds == ["pids"]:
    assert run()[0] == 0
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    os.execv(corral[0], corral)
else:
    answer = list(map(exhausted, kinds))
print(json.dumps(answer))
"""


@pytest.fixture
def user(package):
    with tempfile.TemporaryDirectory(prefix="corral-exhausted-") as base:
        home = pathlib.Path(base) / "home"
        home.mkdir()
        for path in (home.parent, home):
            os.chown(path, NOBODY_ELSE, NOBODY_ELSE)
        yield User("exhausted", NOBODY_ELSE, home, package)


def attempt(user, kinds: str, most: int, *flags: str) -> subprocess.CompletedProcess:
    corral = user.corral_argv("run", *flags, "--", "/bin/echo", "ran")
    argv = [user.python, "-c", OUTER, kinds, str(most), json.dumps(corral)]
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    process = user.popen(argv, stdin=null, stdout=pipe, stderr=pipe, text=True)
    out, err = process.communicate(timeout=100)
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def refused(ended, *words: str) -> bool:
    code, out, err = ended
    told = all(word in err for word in words) and "\nhint: " in err and "Traceback" not in err
    return (code, out) == (125, "") and told


def test_a_run_without_free_namespaces_is_refused(user):
    kinds = ("user", "pid", "net", "mnt", "ipc", "uts", "cgroup")
    done = attempt(user, ",".join(kinds), 8)
    assert done.returncode == 0, done.stderr
    for kind, (before, during, after) in zip(kinds, json.loads(done.stdout), strict=True):
        assert before[:2] == after[:2] == [0, "ran\n"], (kind, before, after)
        assert refused(during, "namespace", "user.max_*_namespaces"), (kind, during)


def test_a_run_without_free_inotify_instances_prints_a_warning(user):
    """Use up all inotify instances. corral then cannot watch the secrets that it hides, and would
    not notice if one of them were replaced. It must warn about this.
    """
    secret = user.home / "granted/.env"
    secret.parent.mkdir()
    secret.write_text("x")
    for path in (secret, secret.parent):
        os.chown(path, NOBODY_ELSE, NOBODY_ELSE)
    done = attempt(user, "inotify", 8, "--write", str(secret.parent))
    assert done.returncode == 0, done.stderr
    [(before, during, after)] = json.loads(done.stdout)
    assert before[:2] == during[:2] == after[:2] == [0, "ran\n"], (before, during, after)
    assert (
        "cannot watch the hidden and read-only paths: Too many open files; raise the sysctl fs.inotify."
        in during[2]
    )
    assert "cannot watch" not in before[2] + after[2]


@pytest.mark.parametrize("most", [1, 2])
def test_a_run_without_free_processes_is_refused(user, most):
    done = attempt(user, "pids", most)
    assert refused((done.returncode, done.stdout, done.stderr), "ulimit -u"), done
