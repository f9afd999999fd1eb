"""Test `corral ps`, `corral clean`, and the cleanup at each start."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import shutil
import subprocess

import pytest
from traces import PATIENCE, Traces, wait_until_gone

pytestmark = pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)

# This program uses 64 MiB of memory until its stdin ends.
HOLD = (
    "import sys\nspace = bytearray(b'x' * (64 << 20))\nprint('ready', flush=True)\nsys.stdin.read()"
)
HEADER = ["RUN", "PID", "UP", "CPU", "MEMORY", "TASKS", "SERVER", "COMMAND"]


class Live:
    """A run whose target waits. At the end of the `with` block the run's stdin is closed, which is
    how a client ends its server.
    """

    def __init__(self, user, *words, env=None):
        self.traces = Traces()
        self.command = [user.python, "-ISc", HOLD, self.traces.argument, *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        argv = user.corral_argv("run", "--", *self.command)
        self.process = user.popen(argv, env=env, **pipes)
        self.pid = self.process.pid

    def __enter__(self):
        line = self.process.stdout.readline()
        assert line == b"ready\n", self.process.stderr.read()
        return self

    def __exit__(self, *_):
        self.process.communicate(timeout=PATIENCE)

    def kill(self):
        """Kill corral, so that it cannot clean up, and wait until no process of the run is left."""
        self.process.kill()
        self.process.wait()
        wait_until_gone(self.traces.argument)


@pytest.fixture
def runs(user):
    """Yield the directory of the run records. It must be empty before and after the test."""
    assert user.run("/bin/true").returncode == 0
    path = user.home / ".cache" / "corral" / "runs"
    assert os.listdir(path) == []
    yield path
    assert os.listdir(path) == []


def listed(user) -> list[dict]:
    done = user.corral("ps", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def sweep(user) -> list[str]:
    done = user.corral("clean", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def work_directories(user, *pids) -> list[str]:
    starts = tuple(f"corral-{user.uid}-{pid}-" for pid in pids)
    return sorted(f"/tmp/{name}" for name in os.listdir("/tmp") if name.startswith(starts))


def test_ps_lists_live_runs_and_their_usage(user, runs):
    assert listed(user) == []
    with Live(user, "a word", "two\nlines") as live:
        (row,) = listed(user)
        assert row["pid"] == live.pid
        assert row["run"].startswith(f"{live.pid}-")
        assert row["command"] == [word.replace("\n", " ") for word in live.command]
        assert row["tasks"] == 1
        assert 64 << 20 <= row["memory"] < 256 << 20
        assert row["started"] > 1_000_000_000
        assert row["cpu_ms"] >= 0
    assert listed(user) == []


def test_ps_prints_a_table(user, runs):
    assert user.corral("ps").stdout == b"no run is alive\n"
    with Live(user) as live:
        head, row = user.corral("ps").stdout.decode().splitlines()[:2]
        assert head.split() == HEADER
        assert row.split()[1] == str(live.pid)
        assert user.python in row


def test_ps_names_the_server_of_a_client(user, runs):
    """List a run with and without a client's file that contains its command. `ps` finds the
    server's name in this file.
    """
    with Live(user) as live:
        folder = user.home / ".cursor"
        folder.mkdir()
        args = ["run", "--", *live.command]
        server = {"command": "/usr/bin/corral", "args": args}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"held": server}}))
        for path in (folder, folder / "mcp.json"):
            os.chown(path, user.uid, user.uid)
        try:
            (row,) = listed(user)
            assert row["server"] == "cursor:held"
        finally:
            shutil.rmtree(folder)
        (row,) = listed(user)
        assert row["server"] == ""


def test_ps_watches_until_it_is_interrupted(user, runs):
    argv = user.corral_argv("ps", "--watch")
    process = user.popen(argv, stdin=-3, stdout=-1, stderr=-1)
    try:
        assert [process.stdout.readline() for _ in range(2)] == [b"no run is alive\n"] * 2
        process.send_signal(2)
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (130, b"")


def test_ps_neither_lists_nor_removes_dead_runs(user, runs):
    with Live(user) as other, Live(user) as live:
        assert {row["pid"] for row in listed(user)} == {live.pid, other.pid}
        live.kill()
        assert [row["pid"] for row in listed(user)] == [other.pid]
        assert len(os.listdir(runs)) == 2
    sweep(user)


def test_clean_removes_dead_runs_only(user, runs):
    with Live(user) as living, Live(user) as dead:
        dead.kill()
        (living_record,) = [name for name in os.listdir(runs) if name.startswith(f"{living.pid}-")]
        kept = work_directories(user, living.pid)
        left = work_directories(user, dead.pid)
        assert len(kept) == len(left) == (1 if user.tier == "bare" else 0)
        assert sweep(user) == left
        assert os.listdir(runs) == [living_record]
        assert work_directories(user, living.pid, dead.pid) == kept
        assert [row["pid"] for row in listed(user)] == [living.pid]
        assert living.process.poll() is None
    assert living.process.returncode == 0


def test_a_start_removes_dead_runs(user, runs):
    with Live(user) as dead:
        dead.kill()
        assert len(os.listdir(runs)) == 1
        assert user.run("/bin/true").returncode == 0
        assert os.listdir(runs) == []
        assert work_directories(user, dead.pid) == []


def test_concurrent_clean_commands_remove_each_dead_run_only_once(user, runs):
    killed = []
    for _ in range(4):
        with Live(user) as dead:
            dead.kill()
        killed.append(dead.pid)
    left = work_directories(user, *killed)
    argv = user.corral_argv("clean", "--json")
    racing = [user.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(6)]
    answers = [process.communicate(timeout=PATIENCE) for process in racing]
    assert [process.returncode for process in racing] == [0] * 6, answers
    assert sorted(path for out, _ in answers for path in json.loads(out)) == left
    assert os.listdir(runs) == []
    assert work_directories(user, *killed) == []


def plant(user, path, text):
    path.write_text(text)
    os.chown(path, user.uid, user.uid)


def left_directory(user) -> pathlib.Path:
    """Make a directory like one that a killed run leaves behind."""
    path = pathlib.Path("/tmp") / f"corral-{user.uid}-1-{os.urandom(4).hex()}"
    path.mkdir(mode=0o700)
    os.chown(path, user.uid, user.uid)
    return path


def record(*residue: str) -> str:
    return "\n".join(("1", "0", "1700000000", str(len(residue)), *residue, "/bin/true"))


GARBAGE = ["", "\0\1\2", "1\n2\n3\n-4\n", "x" * 100_000, "\n" * 50]


def test_invalid_records_are_removed_and_not_listed_as_runs(user, runs):
    for number, text in enumerate(GARBAGE):
        plant(user, runs / f"garbage-{number}", text)
    assert listed(user) == []
    assert len(os.listdir(runs)) == len(GARBAGE)
    assert sweep(user) == []
    assert os.listdir(runs) == []


def test_a_record_can_name_only_corrals_own_directories(user, runs, scratch):
    """Write a record that names two directories, only one of which corral has made. corral may
    remove only the directory that it has made.
    """
    victim, own = scratch / "precious", left_directory(user)
    victim.mkdir()
    os.chown(victim, user.uid, user.uid)
    plant(user, runs / "planted", record(str(victim), str(own)))
    assert sweep(user) == [str(own)]
    assert victim.exists()
    # corral keeps a record as long as a directory in it exists, so the test removes this record.
    (runs / "planted").unlink()


def test_a_link_among_the_records_is_not_followed(user, runs, scratch):
    victim = left_directory(user)
    target = scratch / "record"
    plant(user, target, record(str(victim)))
    (runs / "link").symlink_to(target)
    assert listed(user) == []
    assert sweep(user) == []
    assert user.run("/bin/true").returncode == 0
    assert victim.exists()
    assert target.read_text() == record(str(victim))
    (runs / "link").unlink()
    victim.rmdir()


def test_a_link_to_a_locked_file_is_not_listed_as_a_live_run(user, runs, scratch):
    target = scratch / "record"
    plant(user, target, record())
    (runs / "link").symlink_to(target)
    with open(target, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert listed(user) == []
    (runs / "link").unlink()


def test_a_pipe_among_the_records_does_not_block(user, runs):
    os.mkfifo(runs / "pipe")
    os.chown(runs / "pipe", user.uid, user.uid)
    assert listed(user) == []
    assert sweep(user) == []
    assert user.run("/bin/true").returncode == 0
    (runs / "pipe").unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_another_users_record_is_ignored(user, runs):
    """Run corral with another user's HOME, as sudo may do. The other user's record must not decide
    which directories are removed.
    """
    victim = left_directory(user)
    path = runs / "planted"
    path.write_text(record(str(victim)))
    path.chmod(0o666)
    os.chown(path, 12345, 12345)
    assert listed(user) == []
    assert sweep(user) == []
    assert victim.exists()
    os.chown(path, user.uid, user.uid)
    # Sanity check: the record is used if this user owns it.
    assert sweep(user) == [str(victim)]


def test_a_run_survives_the_loss_of_its_record(user, runs):
    with Live(user) as live:
        shutil.rmtree(runs)
        live.process.stdin.write(b"still there")
    assert live.process.returncode == 0
    assert user.run("/bin/true").returncode == 0


@pytest.mark.parametrize("place", ["absent", "read-only"])
def test_a_run_starts_without_a_writable_cache(user, scratch, place):
    """Use a cache directory that does not exist or is read-only. The run must start, although
    `corral ps` then cannot list it.
    """
    if place == "read-only" and user.uid == 0:
        pytest.skip("file permissions do not apply to root")
    cache = scratch / "cache"
    if place == "absent":
        cache = "/proc/nowhere"
    else:
        (cache / "corral" / "runs").mkdir(parents=True)
        plant(user, cache / "corral" / "runs" / "old", "")
        for path in (cache / "corral" / "runs", cache / "corral", cache):
            os.chown(path, user.uid, user.uid)
            path.chmod(0o500)
    env = user.environment(XDG_CACHE_HOME=str(cache))
    done = user.run("/bin/echo", "ran", env=env)
    assert (done.returncode, done.stdout) == (0, b"ran\n"), done.stderr
    assert user.corral("ps", env=env).stdout == b"no run is alive\n"
    assert user.corral("clean", env=env).returncode == 0
    if place == "read-only":
        assert os.listdir(cache / "corral" / "runs") == ["old"]
