"""Test the limit on processes and threads where no cgroup counts them. There the supervisor has to
decide whether a new process or thread may start.

Each attack stops soon after the limit, so that a failing test does not flood the machine.
"""

from __future__ import annotations

import json

import pytest
from attempts import inside, mechanism_of, outside

pytestmark = pytest.mark.parametrize("tier", ["bare"], indirect=True)

MANY = ("--allow-subprocess",)


@pytest.fixture
def notified(user):
    """Skip a test if a cgroup counts the tasks, because the supervisor then does not count them."""
    how = mechanism_of(user, "pids", *MANY, "--max-pids", "50")
    if how != "seccomp notification":
        pytest.skip(f"{how} limits tasks here, so the supervisor does not count them")


FILL = """
stay, end = os.pipe()
def make(how=os.fork):
    # Starts a process that lives until empty() is called, and returns its pid. Returns 0 if the start is refused.
    try:
        pid = how()
    except BlockingIOError:
        return 0
    if pid == 0:
        os.close(end)
        os.read(stay, 1)
        os._exit(0)
    return pid
def fill(most=70, how=os.fork):
    made = []
    while len(made) < most and (pid := make(how)):
        made.append(pid)
    return made
def empty(made):
    global stay, end
    os.close(end)
    for pid in made:
        os.waitpid(pid, 0)
    os.close(stay)
    stay, end = os.pipe()
"""
REPEATED = (
    FILL
    + """
answer = []
for _ in range(3):
    made = fill()
    answer.append(len(made))
    empty(made)
"""
)


@pytest.mark.parametrize("limit", [5, 30])
def test_ended_processes_make_room_for_new_ones(user, limit):
    """Check that the limit counts living processes, including the target itself. Use two limits, to
    show that the result depends on the limit.
    """
    assert inside(user, REPEATED, flags=(*MANY, "--max-pids", str(limit))) == [limit - 1] * 3
    assert outside(user, REPEATED) == [70] * 3


BOMB = (
    FILL
    + """
told, tell = os.pipe()
def explode(depth):
    # Every process starts other processes until its first refusal. No process ends.
    for _ in range(4):
        try:
            pid = os.fork()
        except BlockingIOError:
            return
        if pid == 0:
            if depth:
                explode(depth - 1)
            os.write(tell, b".")
            os.read(stay, 1)
            os._exit(0)
        os.write(tell, b"+")
explode(3)
os.write(tell, b"+.")
seen = b""
while not seen or seen.count(b"+") != seen.count(b"."):
    seen += os.read(told, 4096)
answer = seen.count(b"+") + len(fill())
"""
)


def test_a_fork_bomb_stays_within_the_limit(user):
    """Let all processes fork at once, and let none of them end. Without the limit there would be
    340 processes.
    """
    assert inside(user, BOMB, flags=(*MANY, "--max-pids", "40")) == 40
    assert inside(user, BOMB, flags=(*MANY, "--max-pids", "60")) == 60


ORPHANS = (
    FILL
    + """
told, tell = os.pipe()
def leave_orphans():
    # Parents end while other processes start, so orphans may move to another parent during a count.
    try:
        pid = os.fork()
    except BlockingIOError:
        return
    if pid == 0:
        os.setsid()
        os.write(tell, b"+" * len(fill(3)))
        os._exit(0)
    os.waitpid(pid, 0)
workers = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        for _ in range(40):
            leave_orphans()
        os._exit(0)
    workers.append(pid)
for pid in workers:
    os.waitpid(pid, 0)
os.write(tell, b"+")
answer = len(os.read(told, 4096)) + len(fill())
"""
)


def test_orphans_stay_within_the_limit(user):
    assert inside(user, ORPHANS, flags=(*MANY, "--max-pids", "50")) == 50


THREADS = """
import threading
release = threading.Event()
threads = []
refused = False
while len(threads) < 70 and not refused:
    thread = threading.Thread(target=release.wait)
    try:
        thread.start()
        threads.append(thread)
    except RuntimeError:
        refused = True
release.set()
[thread.join() for thread in threads]
answer = [len(threads), refused]
"""


@pytest.mark.parametrize("flags", [(), MANY], ids=["alone", "subprocess"])
def test_threads_count_towards_the_limit(user, flags):
    assert inside(user, THREADS, flags=(*flags, "--max-pids", "20")) == [19, True]
    assert inside(user, THREADS, flags=(*flags, "--max-pids", "80")) == [70, False]


def test_every_kind_of_process_start_counts(user):
    code = (
        FILL
        + """
def cloned():
    # libc's fork() makes this call on machines without a system call fork.
    return call("clone", 17, 0, 0, 0, 0)
answer = {}
for name, how in (("fork", os.fork), ("clone", cloned)):
    made = fill(how=how)
    answer[name] = len(made)
    empty(made)
def spawned():
    try:
        return os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    except BlockingIOError:
        return 0
made = []
while len(made) < 40 and (pid := spawned()):
    made.append(pid)
answer["spawn"] = len(made)
[os.kill(pid, 9) or os.waitpid(pid, 0) for pid in made]
"""
    )
    answer = inside(user, code, flags=(*MANY, "--max-pids", "10"))
    assert answer == {"fork": 9, "clone": 9, "spawn": 9}


def test_processes_one_after_the_other_are_never_refused(user):
    """Start far more processes than the limit allows, but each only after the previous one has
    ended.
    """
    code = """
import subprocess
answer = sum(subprocess.run(["/bin/true"]).returncode == 0 for _ in range(60))
"""
    assert inside(user, code, flags=(*MANY, "--max-pids", "4")) == 60


def test_processes_stay_denied_where_threads_are_counted(user):
    code = """
import threading
thread = threading.Thread(target=int)
thread.start()
thread.join()
answer = [tried(os.fork), tried(lambda: call("clone", 17, 0, 0, 0, 0)), tried(lambda: call("vfork"))]
"""
    assert inside(user, code, flags=("--max-pids", "50")) == ["EPERM"] * 3


@pytest.mark.usefixtures("notified")
def test_a_target_cannot_become_a_subreaper(user):
    """Try to become a subreaper, which adopts the orphans among its descendants. An orphan could
    then change its parent while the supervisor counts the tree, and would be missed.
    """
    code = "answer = tried(lambda: call('prctl', 36, 1, 0, 0, 0))"
    assert inside(user, code, flags=(*MANY, "--max-pids", "50")) == "EPERM"
    assert outside(user, code) == "done"


@pytest.mark.usefixtures("notified")
def test_the_report_names_how_processes_are_limited_and_whether_the_limit_was_reached(
    user, scratch
):
    path = scratch / "report.json"

    def reported(code):
        flags = (*MANY, "--max-pids", "10", "--report", str(path))
        done = user.run(user.python, "-c", f"import os\n{code}", flags=flags)
        assert done.returncode == 0, done.stderr
        report = json.loads(path.read_text())
        held = {one["control"]: one for one in report["controls"]}["pids"]
        assert (held["mechanism"], held["status"]) == ("seccomp notification", "applied")
        return report["hit"]

    assert reported(f"{FILL}\nempty(fill())") == ["pids"]
    assert reported(f"{FILL}\nempty(fill(5))") == []


@pytest.mark.usefixtures("notified")
def test_the_default_limit_counts_threads_without_a_warning(user):
    """Check that the default limit counts threads, but is not enforced if subprocesses are allowed.
    Otherwise each fork would have to wait for the supervisor's decision, and a SIGCHLD could
    interrupt a shell's fork.
    """
    done = user.run("/bin/true", flags=("-v",))
    assert done.returncode == 0
    assert b"pids" not in done.stderr
    said = user.corral("explain", "-v", "--", "/bin/true").stdout.decode()
    assert "at most 128 processes and threads" in said
    said = user.corral("explain", "-v", *MANY, "--", "/bin/true").stdout.decode()
    assert "processes and threads, counted" not in said
    assert "pids is not enforced" in said


def test_a_shell_under_the_default_limit_is_never_interrupted(user):
    """Run dash while hundreds of its children end. dash catches SIGCHLD without SA_RESTART. If a
    fork had to wait for the supervisor, SIGCHLD could interrupt it, and the shell would fail.
    """
    loop = "i=0; while [ $i -lt 200 ]; do echo x | cat >/dev/null || exit 3; i=$((i+1)); done"
    done = user.run("/bin/sh", "-c", loop, flags=MANY)
    assert done.returncode == 0, done.stderr


INTERRUPTED = """
import signal, threading, time
# One thread sends as many signals as it can, without SA_RESTART, while other threads start.
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.siginterrupt(signal.SIGUSR1, True)
ended = False
def send():
    while not ended:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
sender = threading.Thread(target=send)
sender.start()
answer = 0
for _ in range(200):
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    answer += 1
ended = True
sender.join()
"""


def test_threads_start_during_a_flood_of_signals(user):
    assert inside(user, INTERRUPTED) == 200


def test_a_thread_that_makes_itself_undumpable_is_counted(user):
    code = FILL + "call('prctl', 4, 0, 0, 0, 0)\nanswer = len(fill())"
    assert inside(user, code, flags=(*MANY, "--max-pids", "15")) == 14
