"""End runs in every possible way, and check that they leave nothing behind."""

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
from corral.platforms.windows.files import journal
from corral.platforms.windows.mechanisms import job
from corral.platforms.windows.mechanisms.job import Job
from corral.platforms.windows.watch import Signals
from windows.conftest import PYTHON

LOOSE = ("--best-effort", "--allow-subprocess")
LOOSE_POLICY = {
    "subprocess": {"allow": True},
    "degrade": {
        "allow": [
            *("filesystem", "network", "subprocess", "syscalls"),
            *("memory", "pids", "fds", "disk"),
        ]
    },
}
# This program prints its own pid and its child's, and then waits forever.
TREE = (
    "import os, subprocess, sys, threading\n"
    "wait = 'import threading; threading.Event().wait()'\n"
    "child = subprocess.Popen([sys.executable, '-c', wait], stdin=subprocess.PIPE)\n"
    "print(os.getpid(), child.pid, os.environ['TEMP'], sep='|', flush=True)\n"
    "threading.Event().wait()\n"
)


class Tree:
    """A run of the program TREE. This object keeps handles to the run's processes, because Windows
    may reuse their pids.
    """

    def __init__(self, corral, *flags: str, **options):
        argv = corral.argv("run", *LOOSE, *flags, "--", PYTHON, "-c", TREE)
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
    running = tree("--timeout", "15s", "--report", str(path))
    assert running.corral.wait(60) == 124
    assert running.is_gone()
    assert json.loads(path.read_text())["outcome"]["kind"] == "timeout"
    assert not os.path.exists(running.private)
    assert records() == []


def test_the_tree_ends_with_corral(corral, tree):
    """Kill corral with TerminateProcess, as some clients do when they stop waiting. corral cannot
    react to this.
    """
    running = tree()
    assert len(records()) == 1
    running.corral.kill()
    assert running.is_gone()
    assert os.path.exists(running.private)  # the next start of corral removes it
    assert corral.run(PYTHON, "-c", "pass", flags=LOOSE).returncode == 0
    assert not os.path.exists(os.path.dirname(running.private))
    assert records() == []


def test_clean_removes_leftovers_of_dead_runs_only(corral, tree):
    dead, living = tree(), tree()
    dead.corral.kill()
    assert dead.is_gone()
    (swept,) = json.loads(corral("clean", "--json").stdout)
    # `clean` names the private directory or, if the run had an AppContainer, the journal that lists the leftovers.
    assert swept == os.path.dirname(dead.private) or swept.endswith(journal.SUFFIX)
    assert not os.path.exists(dead.private)
    assert os.path.exists(living.private)
    assert living.corral.poll() is None


@pytest.mark.real_windows(reason="it has no console through which Ctrl+Break could be sent")
def test_ctrl_break_ends_the_tree(tree):
    """Check that corral ends the target after Ctrl+Break. Only corral receives this event, because the target has no
    console.
    """
    running = tree(creationflags=subprocess.CREATE_NEW_PROCESS_GROUP)
    running.corral.send_signal(signal.CTRL_BREAK_EVENT)
    assert running.corral.wait(90) == 137
    assert running.is_gone()
    assert not os.path.exists(running.private)


def test_a_console_event_is_kept_until_it_is_read():
    heard = Signals((2, 15))
    assert abi.wait_any((heard.fileno(),), 0) is None
    assert heard._handle(abi.CTRL_C_EVENT)
    assert heard._handle(abi.CTRL_BREAK_EVENT)
    assert abi.wait_any((heard.fileno(),), 0) == 0
    assert heard.read() == [2, 15]
    assert abi.wait_any((heard.fileno(),), 0) is None
    heard.close()


def test_an_ignored_console_event_stays_ignored():
    heard = Signals((15,))
    assert heard._handle(abi.CTRL_C_EVENT)
    assert heard.read() == []
    heard.close()


def test_the_run_ends_with_its_first_process(corral):
    """Check that an orphan of the target ends too, and that corral does not wait for the orphan's open streams."""
    code = (
        "import subprocess, sys\n"
        "wait = 'import threading; threading.Event().wait()'\n"
        "print(subprocess.Popen([sys.executable, '-c', wait]).pid, flush=True)\n"
    )
    done = corral.run(PYTHON, "-c", code, flags=LOOSE)
    assert done.returncode == 0
    try:
        left = abi.open_process(int(done.stdout), abi.SYNCHRONIZE)
    except OSError:
        return  # the orphan is already gone
    with left:
        assert abi.wait_any((left.value,), 10_000) == 0


def test_the_api_stops_and_kills_a_tree():
    argv = [PYTHON, "-c", TREE]
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


def test_trees_end_with_their_caller():
    caller = (
        "import corral\n"
        f"box = corral.launch([{PYTHON!r}, '-c', {TREE!r}], {LOOSE_POLICY!r}, stdout=corral.PIPE)\n"
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


def test_corral_ends_with_a_job_that_its_client_put_it_into(tree):
    """Put corral into a job after its start, as MCP's Python SDK does, and then end the job."""
    outer = job.create(Job(read_back=keeps()))
    running = tree()
    win32_job.AssignProcessToJobObject(outer.handle.value, int(running.corral._handle))
    outer.release()
    running.corral.wait(90)
    assert running.is_gone()


def test_a_run_works_inside_a_clients_job(corral):
    """Start corral in a client's job. corral then makes a nested job for its target."""
    outer = job.create(Job(read_back=keeps()))
    waiting = "import sys; sys.stdin.readline()\nimport subprocess\nsys.exit(subprocess.call(sys.argv[1:]))"
    argv = corral.argv("run", *LOOSE, "--", PYTHON, "-c", "print('inside')")
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
