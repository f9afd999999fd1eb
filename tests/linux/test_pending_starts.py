"""Make the supervisor or the target fail while a process start waits for an answer."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "inside"))
from attempts import BOTH_TIERS
from test_faults import waits_for_ever
from traces import children

PATIENCE = 60
FORKS = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
{before}
def attempt():
    try:
        child = os.fork()
    except OSError as error:
        return errno.errorcode[error.errno]
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return "started"
print("ready", flush=True)
for line in sys.stdin:
    print(attempt(), flush=True)
"""
UNDUMPABLE = "assert libc.prctl(4, 0, 0, 0, 0) == 0"


class Run:
    """A run whose target tries to fork for each line of its stdin, and prints the result."""

    def __init__(self, user, *flags, before=""):
        self.report = user.home / "pending.json"
        words = ("run", "--report", str(self.report), *flags, "--", user.python, "-ISc")
        argv = user.corral_argv(*words, FORKS.format(before=before))
        pipe = subprocess.PIPE
        self.process = user.popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self) -> None:
        self.process.stdin.write("fork\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        return self.process.stdout.readline().strip()

    def end(self) -> dict:
        _, self.err = self.process.communicate(timeout=PATIENCE)
        found = json.loads(self.report.read_text())
        self.report.unlink()
        return found


def starts(report: dict) -> list[str]:
    return [row["destination"] for row in report["denials"] if row["kind"] == "start"]


def wait_in_call(pid: int) -> None:
    """Wait until the target is inside a system call that starts a process. There it waits for the
    supervisor's answer. The target has only one thread, so one look at it is enough.
    """
    calls = {"56", "57", "58", "435"} if os.uname().machine == "x86_64" else {"220", "435"}
    while True:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            if file.read().split()[0] in calls:
                return


def find_target(pid: int) -> int:
    """Return the target's pid. The target is init's first child, and init is the supervisor's."""
    while found := children(pid):
        pid = found[0]
    return pid


def limit_descriptors(user, pid: int, most: int) -> None:
    """Set the descriptor limit of a user's process. Do so in a process of the same user, which
    needs no privilege for this.
    """
    code = "import resource, sys; pid, most = map(int, sys.argv[1:])\n"
    code += "hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]\n"
    code += "resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))"
    with user.popen([user.python, "-c", code, str(pid), str(most)]) as running:
        assert running.wait(PATIENCE) == 0


@BOTH_TIERS
def test_an_allowed_process_start_succeeds(user):
    run = Run(user, "--allow-subprocess")
    run.ask()
    assert run.answer() == "started"
    assert run.end()["outcome"]["exit_code"] == 0


@BOTH_TIERS
def test_a_process_start_is_denied_if_the_supervisor_was_paused_meanwhile(user):
    run = Run(user)
    target = find_target(run.pid)
    os.kill(run.pid, signal.SIGSTOP)
    run.ask()
    wait_in_call(target)
    os.kill(run.pid, signal.SIGCONT)
    assert run.answer() == "EPERM"
    report = run.end()
    assert report["outcome"]["exit_code"] == 0
    assert len(starts(report)) == 1


def test_no_process_starts_if_the_supervisor_is_killed_meanwhile(user):
    """Kill the supervisor. The kernel then closes the seccomp listener, so the waiting call fails,
    and all processes of the run end.
    """
    run = Run(user)
    target = find_target(run.pid)
    os.kill(run.pid, signal.SIGSTOP)
    run.ask()
    wait_in_call(target)
    ending = select.poll()
    pidfd = os.pidfd_open(target)
    ending.register(pidfd, select.POLLIN)
    run.process.kill()
    # `communicate` returns only when the last process of the run has closed its stdout.
    out, _ = run.process.communicate(timeout=PATIENCE)
    assert "started" not in out
    assert ending.poll(PATIENCE * 1000)
    os.close(pidfd)


@BOTH_TIERS
def test_a_process_start_is_denied_if_the_supervisor_has_no_free_descriptors(user):
    """Leave the supervisor without free descriptors. Then it cannot open the target's memory to
    read a program's name, and cannot open the files of its own modules. It must still deny process
    starts.
    """
    run = Run(user)
    # Wait until the supervisor has imported all its modules. Otherwise it could not open a module,
    # because no descriptor is free, and would end the run.
    while not waits_for_ever(run.pid):
        time.sleep(0.01)
    limit_descriptors(user, run.pid, 1 + max(map(int, os.listdir(f"/proc/{run.pid}/fd"))))
    for _ in range(3):
        run.ask()
        assert run.answer() == "EPERM"
    limit_descriptors(user, run.pid, 1024)
    run.ask()
    assert run.answer() == "EPERM"
    report = run.end()
    assert report["outcome"]["exit_code"] == 0, run.err
    # The supervisor needs a free descriptor to read a program's name. It had one when the last
    # start was tried, so the report contains python3. It may report the earlier starts without a
    # name.
    assert {*starts(report), "a process by the target"} == {
        "a process by the target",
        "a process by python3",
    }


@BOTH_TIERS
@pytest.mark.parametrize("before", ["", UNDUMPABLE], ids=["plain", "undumpable"])
def test_a_target_that_hides_its_memory_cannot_start_a_process(user, before):
    run = Run(user, before=before)
    run.ask()
    assert run.answer() == "EPERM"
    report = run.end()
    assert report["outcome"]["exit_code"] == 0, run.err
    assert len(starts(report)) == 1


def test_a_target_that_hides_its_memory_ends_at_its_timeout(user):
    before = UNDUMPABLE + "\nimport signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)"
    user.grace_seconds = 0.2
    run = Run(user, "--timeout", "8s", before=before)
    target = find_target(run.pid)
    assert run.process.wait(PATIENCE) == 124
    assert run.end()["outcome"]["kind"] == "timeout"
    assert not os.path.exists(f"/proc/{target}")
