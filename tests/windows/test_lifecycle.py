"""How a run ends, whoever ends it, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

import corral as package
from corral.abi import win32_job
from corral.abi import win32_process as abi
from corral.platforms import run_records
from corral.platforms.windows.mechanisms import job
from corral.platforms.windows.mechanisms.job import Job
from corral.platforms.windows.watch import Signals

LOOSE = ("--best-effort",)
LOOSE_POLICY = {
    "degrade": {
        "allow": [
            *("filesystem", "network", "subprocess", "syscalls"),
            *("memory", "pids", "fds", "disk"),
        ]
    }
}
# Says the pids of itself and of a child of its own, and waits for an end that its input never brings.
TREE = (
    "import os, subprocess, sys, threading\n"
    "wait = 'import threading; threading.Event().wait()'\n"
    "child = subprocess.Popen([sys.executable, '-c', wait], stdin=subprocess.DEVNULL)\n"
    "print(os.getpid(), child.pid, os.environ['TEMP'], sep='|', flush=True)\n"
    "threading.Event().wait()\n"
)


class Tree:
    """A run of TREE, with handles of all its processes: their numbers may be used again."""

    def __init__(self, corral, *flags: str, **options):
        argv = corral.argv("run", *LOOSE, *flags, "--", sys.executable, "-c", TREE)
        self.corral = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
        )
        first, second, self.private = self.corral.stdout.readline().decode().strip().split("|")
        self.handles = [abi.open_process(int(pid), abi.SYNCHRONIZE) for pid in (first, second)]
        assert abi.wait_any([handle.value for handle in self.handles], 0) is None  # both live

    def is_gone(self) -> bool:
        return all(abi.wait_any([handle.value], 15_000) == 0 for handle in self.handles)

    def close(self) -> None:
        for handle in self.handles:
            handle.close()
        self.corral.kill()
        self.corral.communicate()


@pytest.fixture
def tree(corral):
    made: list[Tree] = []

    def make(*flags: str, **options) -> Tree:
        made.append(Tree(corral, *flags, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def records() -> list[str]:
    return os.listdir(run_records._directory())


def test_a_timeout_ends_the_tree(tree, tmp_path):
    path = tmp_path / "report.json"
    running = tree("--timeout", "3s", "--report", str(path))
    assert running.corral.wait(30) == 124
    assert running.is_gone()
    assert json.loads(path.read_text())["outcome"]["kind"] == "timeout"
    assert not os.path.exists(running.private)
    assert records() == []


def test_the_death_of_corral_is_the_death_of_the_tree(corral, tree):
    """As a client does that has lost its patience: TerminateProcess, and nothing is asked."""
    running = tree()
    assert len(records()) == 1
    running.corral.kill()
    assert running.is_gone()
    assert os.path.exists(running.private)  # nobody was left to remove it: the next start does
    assert corral.run(sys.executable, "-c", "pass", flags=LOOSE).returncode == 0
    assert not os.path.exists(os.path.dirname(running.private))
    assert records() == []


def test_sweep_removes_what_a_killed_run_left_and_nothing_of_a_living_one(corral, tree):
    dead, living = tree(), tree()
    dead.corral.kill()
    assert dead.is_gone()
    swept = json.loads(corral("sweep", "--json").stdout)
    assert swept == [os.path.dirname(dead.private)]
    assert os.path.exists(living.private)
    assert living.corral.poll() is None


@pytest.mark.real_windows(reason="there is no console to send it through")
def test_ctrl_break_ends_the_tree(tree):
    """Corral gets it alone: the target has no console to be told by."""
    running = tree(creationflags=subprocess.CREATE_NEW_PROCESS_GROUP)
    running.corral.send_signal(signal.CTRL_BREAK_EVENT)
    assert running.corral.wait(30) == 137
    assert running.is_gone()
    assert not os.path.exists(running.private)


def test_a_console_event_waits_to_be_read():
    heard = Signals((2, 15))
    assert abi.wait_any((heard.fileno(),), 0) is None
    assert heard._handle(abi.CTRL_C_EVENT)
    assert heard._handle(abi.CTRL_BREAK_EVENT)
    assert abi.wait_any((heard.fileno(),), 0) == 0
    assert heard.read() == [2, 15]
    assert abi.wait_any((heard.fileno(),), 0) is None
    heard.close()


def test_a_console_event_that_was_ignored_stays_so():
    heard = Signals((15,))
    assert heard._handle(abi.CTRL_C_EVENT)
    assert heard.read() == []
    heard.close()


def test_the_end_of_the_first_process_is_the_end_of_the_run(corral):
    """A child that was left behind goes too, and what it holds open does not keep corral."""
    code = (
        "import subprocess, sys\n"
        "wait = 'import threading; threading.Event().wait()'\n"
        "print(subprocess.Popen([sys.executable, '-c', wait]).pid, flush=True)\n"
    )
    done = corral.run(sys.executable, "-c", code, flags=LOOSE)
    assert done.returncode == 0
    try:
        left = abi.open_process(int(done.stdout), abi.SYNCHRONIZE)
    except OSError:
        return  # gone, and nobody remembers it
    with left:
        assert abi.wait_any((left.value,), 10_000) == 0


def test_the_api_stops_and_kills_a_tree():
    argv = [sys.executable, "-c", TREE]
    with package.launch(argv, LOOSE_POLICY, stdin=package.PIPE, stdout=package.PIPE) as sandbox:
        first, second, private = sandbox.stdout.readline().decode().strip().split("|")
        assert int(first) == sandbox.pid
        handles = [abi.open_process(int(pid), abi.SYNCHRONIZE) for pid in (first, second)]
        assert abi.wait_any([handle.value for handle in handles], 0) is None
        assert sandbox.kill() == 137
        for handle in handles:
            assert abi.wait_any((handle.value,), 15_000) == 0
            handle.close()
    assert sandbox.report.outcome.kind == "signalled"
    assert not os.path.exists(private)


def test_the_death_of_a_caller_is_the_death_of_its_trees():
    caller = (
        "import corral, os, sys\n"
        f"box = corral.launch([sys.executable, '-c', {TREE!r}], {LOOSE_POLICY!r}, stdout=corral.PIPE)\n"
        "print(box.stdout.readline().decode().strip(), flush=True)\n"
        "input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", caller], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    first, second, _ = process.stdout.readline().decode().strip().split("|")
    handles = [abi.open_process(int(pid), abi.SYNCHRONIZE) for pid in (first, second)]
    assert abi.wait_any([handle.value for handle in handles], 0) is None
    process.kill()
    for handle in handles:
        assert abi.wait_any((handle.value,), 15_000) == 0
        handle.close()
    process.communicate()


def test_a_client_may_keep_corral_in_a_job_of_its_own(tree):
    """As the Python SDK of MCP does, after the start; its end is the end of everything in it."""
    outer = job.create(Job(read_back=keeps()))
    running = tree()
    win32_job.AssignProcessToJobObject(outer.handle.value, int(running.corral._handle))
    outer.release()
    running.corral.wait(15)
    assert running.is_gone()


def test_a_run_inside_a_clients_job(corral):
    """Started there, as every later server is: the target's job is nested in the client's."""
    outer = job.create(Job(read_back=keeps()))
    waiting = "import sys; sys.stdin.readline()\nimport subprocess\nsys.exit(subprocess.call(sys.argv[1:]))"
    argv = corral.argv("run", *LOOSE, "--", sys.executable, "-c", "print('inside')")
    client = subprocess.Popen(
        [sys.executable, "-c", waiting, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    win32_job.AssignProcessToJobObject(outer.handle.value, int(client._handle))
    output, _ = client.communicate(b"go\n", timeout=60)
    outer.release()
    assert (client.returncode, output.strip()) == (0, b"inside")


def keeps() -> bool:
    try:
        job.create(Job()).release()
    except OSError:
        return False
    return True
