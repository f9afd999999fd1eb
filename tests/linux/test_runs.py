"""Which runs are alive, and the broom: `corral ps`, `corral sweep`, and what a start sweeps by itself."""

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

# 64 MiB that are touched, then it holds until its stdin ends.
HOLD = (
    "import sys\nspace = bytearray(b'x' * (64 << 20))\nprint('ready', flush=True)\nsys.stdin.read()"
)
EMPTY = ["RUN", "PID", "UP", "CPU", "MEMORY", "TASKS", "COMMAND"]


class Live:
    """A run that holds; leaving ends it as its client would."""

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
        """With no chance to clean up; returns once nothing of it runs."""
        self.process.kill()
        self.process.wait()
        wait_until_gone(self.traces.argument)


@pytest.fixture
def runs(user):
    """The directory of the records, empty at first: the home is this session's own."""
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
    done = user.corral("sweep", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def work_directories(user, *pids) -> list[str]:
    starts = tuple(f"corral-{user.uid}-{pid}-" for pid in pids)
    return sorted(f"/tmp/{name}" for name in os.listdir("/tmp") if name.startswith(starts))


def test_ps_lists_what_lives_with_what_it_uses(user, runs):
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


def test_ps_is_a_table(user, runs):
    assert user.corral("ps").stdout.decode().split() == EMPTY
    with Live(user) as live:
        head, row = user.corral("ps").stdout.decode().splitlines()[:2]
        assert head.split() == EMPTY
        assert row.split()[1] == str(live.pid)
        assert user.python in row


def test_ps_does_not_list_the_dead_and_does_not_sweep_them(user, runs):
    with Live(user) as other, Live(user) as live:
        assert {row["pid"] for row in listed(user)} == {live.pid, other.pid}
        live.kill()
        assert [row["pid"] for row in listed(user)] == [other.pid]
        assert len(os.listdir(runs)) == 2
    sweep(user)


def test_sweep_removes_what_is_dead_and_nothing_that_lives(user, runs):
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


def test_a_start_sweeps_too(user, runs):
    with Live(user) as dead:
        dead.kill()
        assert len(os.listdir(runs)) == 1
        assert user.run("/bin/true").returncode == 0
        assert os.listdir(runs) == []
        assert work_directories(user, dead.pid) == []


def test_sweeps_that_race_share_the_work(user, runs):
    killed = []
    for _ in range(4):
        with Live(user) as dead:
            dead.kill()
        killed.append(dead.pid)
    left = work_directories(user, *killed)
    argv = user.corral_argv("sweep", "--json")
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
    """A directory as a killed run leaves it."""
    path = pathlib.Path("/tmp") / f"corral-{user.uid}-1-{os.urandom(4).hex()}"
    path.mkdir(mode=0o700)
    os.chown(path, user.uid, user.uid)
    return path


def record(*residue: str) -> str:
    return "\n".join(("1", "0", "1700000000", str(len(residue)), *residue, "/bin/true"))


GARBAGE = ["", "\0\1\2", "1\n2\n3\n-4\n", "x" * 100_000, "\n" * 50]


def test_garbage_is_nobodys_run_and_is_swept(user, runs):
    for number, text in enumerate(GARBAGE):
        plant(user, runs / f"garbage-{number}", text)
    assert listed(user) == []
    assert len(os.listdir(runs)) == len(GARBAGE)
    assert sweep(user) == []
    assert os.listdir(runs) == []


def test_a_record_names_nothing_but_corrals_own(user, runs, scratch):
    """Somebody's directory is not swept, whatever a record says; the control has the right name."""
    victim, own = scratch / "precious", left_directory(user)
    victim.mkdir()
    os.chown(victim, user.uid, user.uid)
    plant(user, runs / "planted", record(str(victim), str(own)))
    assert sweep(user) == [str(own)]
    assert victim.exists()
    (runs / "planted").unlink()  # it still names something, so it was kept


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


def test_a_locked_link_does_not_pass_for_a_live_run(user, runs, scratch):
    target = scratch / "record"
    plant(user, target, record())
    (runs / "link").symlink_to(target)
    with open(target, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert listed(user) == []
    (runs / "link").unlink()


def test_a_pipe_among_the_records_holds_nobody_up(user, runs):
    os.mkfifo(runs / "pipe")
    os.chown(runs / "pipe", user.uid, user.uid)
    assert listed(user) == []
    assert sweep(user) == []
    assert user.run("/bin/true").returncode == 0
    (runs / "pipe").unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of another user's")
def test_another_users_record_is_not_believed(user, runs):
    """A directory kept in an environment (sudo) may be somebody's who may not remove what it names."""
    victim = left_directory(user)
    path = runs / "planted"
    path.write_text(record(str(victim)))
    path.chmod(0o666)
    os.chown(path, 12345, 12345)
    assert listed(user) == []
    assert sweep(user) == []
    assert victim.exists()
    os.chown(path, user.uid, user.uid)
    assert sweep(user) == [str(victim)]  # the control: the same record in one's own name


def test_a_run_survives_the_loss_of_its_record(user, runs):
    with Live(user) as live:
        shutil.rmtree(runs)
        live.process.stdin.write(b"still there")
    assert live.process.returncode == 0
    assert user.run("/bin/true").returncode == 0


@pytest.mark.parametrize("place", ["absent", "read-only"])
def test_a_run_needs_no_place_for_its_record(user, scratch, place):
    """The caches are elsewhere and cannot be written: the run only loses its place in the list."""
    if place == "read-only" and user.uid == 0:
        pytest.skip("permissions hold nobody who is root")
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
    assert user.corral("ps", env=env).stdout.decode().split() == EMPTY
    assert user.corral("sweep", env=env).returncode == 0
    if place == "read-only":
        assert os.listdir(cache / "corral" / "runs") == ["old"]
