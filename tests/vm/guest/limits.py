"""Test limits that a cgroup enforces, as root and as an ordinary user with a delegated subtree.

The tests use little memory, because a page fault takes a third of a millisecond in user-mode Linux.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess

import pytest

MIB = 1 << 20
LIMIT = 32 * MIB
CGROUP = pathlib.Path("/sys/fs/cgroup")
PYTHON = ("python3", "-ISc")

FORKS = """
import os, signal
count = 0
try:
    while count < 60:
        if os.fork() == 0:
            signal.pause()
        count += 1
except OSError as error:
    print(error.errno, count)
else:
    print(0, count)
"""
THREADS = """
import threading
count, forever = 0, threading.Event()
try:
    while count < 60:
        threading.Thread(target=forever.wait, daemon=True).start()
        count += 1
except RuntimeError:
    print("denied", count)
else:
    print("allowed", count)
import os, sys
sys.stdout.flush()
os._exit(0)
"""
BOMB = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
# In this program, fifty children together use three times the memory limit. No single child exceeds
# the limit.
HOGS = f"""
import os, signal
for number in range(50):
    if os.fork() == 0:
        space = bytearray({3 * LIMIT // 50})
        signal.pause()
signal.pause()
"""
SHARE = """
import time
start = time.monotonic()
before = time.process_time()
while time.monotonic() - start < 3:
    pass
print((time.process_time() - before) / (time.monotonic() - start))
"""
WRITABLE = """
import os
mounts = [line.split() for line in open("/proc/self/mounts")]
tops = [fields[1] for fields in mounts if fields[2] == "cgroup2"]
found = [path for top in tops for path, _, _ in os.walk(top)]
print([path for path in found if os.access(f"{path}/cgroup.procs", os.W_OK)])
"""
HOLD = "import signal; print(1, flush=True); signal.pause()"


class Run:
    """The results of one `corral run`, including its report."""

    def __init__(self, person, path: pathlib.Path, *command: str, flags: tuple[str, ...]) -> None:
        done = person.run(*command, flags=(*flags, "--report", str(path)))
        self.returncode = done.returncode
        self.stdout = done.stdout.decode()
        self.stderr = done.stderr.decode()
        self.report = json.loads(path.read_text())
        path.unlink()

    @property
    def kind(self) -> str:
        return self.report["outcome"]["kind"]

    def mechanism(self, control: str) -> str:
        return next(
            held["mechanism"] for held in self.report["controls"] if held["control"] == control
        )

    def words(self) -> str:
        return (
            f"{self.returncode}\n{self.stdout}\n{self.stderr}\n{json.dumps(self.report, indent=1)}"
        )


@pytest.fixture
def run(person, tmp_path):
    return lambda *command, flags=(): Run(person, tmp_path / "report.json", *command, flags=flags)


def cgroups() -> set[str]:
    return {str(path.relative_to(CGROUP)) for path in CGROUP.rglob("*") if path.is_dir()}


def processes() -> set[str]:
    """Return all processes on the machine except kernel threads."""
    return {
        pid
        for pid in filter(str.isdigit, os.listdir("/proc"))
        if os.path.exists(f"/proc/{pid}") and command_line(pid)
    }


def command_line(pid: str) -> bytes:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_doctor_has_proven_every_controller(person):
    found = json.loads(person.corral("doctor", "--json").stdout)["findings"]
    status = {finding["capability"]: finding["status"] for finding in found}
    names = ("memory", "pids", "cpu", "io")
    assert {name: status[f"cgroup_{name}"] for name in names} == dict.fromkeys(names, "proven"), (
        found
    )


def test_memory_beyond_the_limit_ends_the_tree(run):
    done = run(*PYTHON, f"bytearray({3 * LIMIT})", flags=("--max-memory", str(LIMIT)))
    assert (done.kind, done.returncode) == ("memory", 137), done.words()
    assert "cgroup" in done.mechanism("memory")
    assert "memory" in done.report["hit"]


def test_memory_within_the_limit_is_counted(run):
    done = run(*PYTHON, f"bytearray({LIMIT // 4})", flags=("--max-memory", str(LIMIT)))
    assert (done.kind, done.returncode) == ("exited", 0), done.words()
    assert LIMIT // 4 < done.report["usage"]["memory"] <= LIMIT
    assert done.report["hit"] == []


def test_memory_of_the_whole_tree_is_added_up(run):
    flags = ("--allow-subprocess", "--max-memory", str(LIMIT))
    done = run(*PYTHON, HOGS, flags=flags)
    assert (done.kind, done.returncode) == ("memory", 137), done.words()


def test_files_in_private_directories_count_as_memory(run):
    code = f"open('/tmp/file', 'wb').write(bytes({MIB}) * {3 * LIMIT // MIB})"
    done = run(*PYTHON, code, flags=("--max-memory", str(LIMIT)))
    assert (done.kind, done.returncode) == ("memory", 137), done.words()


@pytest.mark.parametrize(("limit", "first"), [(16, "11"), (100, "0")])
def test_processes_beyond_the_limit_are_denied(run, limit, first):
    """Try to fork 60 times. `first` is the errno that the target prints: 11 (EAGAIN) if the limit
    denies a fork, or 0 if all 60 forks succeed.
    """
    done = run(*PYTHON, FORKS, flags=("--allow-subprocess", "--max-pids", str(limit)))
    assert done.returncode == 0, done.words()
    assert "cgroup" in done.mechanism("pids")
    number, count = done.stdout.split()
    assert (number, int(count)) == (first, min(limit - 1, 60)), done.words()


@pytest.mark.parametrize(("limit", "word"), [(16, "denied"), (100, "allowed")])
def test_threads_count_as_processes(run, limit, word):
    done = run(*PYTHON, THREADS, flags=("--max-pids", str(limit)))
    assert done.stdout.split() == [word, str(min(limit - 1, 60))], done.words()


def test_a_fork_bomb_ends_at_its_deadline_and_leaves_nothing(run):
    before = processes()
    flags = ("--allow-subprocess", "--max-pids", "24", "--timeout", "2s")
    done = run(*PYTHON, BOMB, flags=flags)
    assert (done.kind, done.returncode) == ("timeout", 124), done.words()
    assert processes() <= before


def test_cpu_use_is_limited_to_its_share(run):
    """Run with --max-cpu 200, which is a fifth of one processor. Only the upper bound is checked,
    because the target may get less if the host is busy.
    """
    done = run(*PYTHON, SHARE, flags=("--max-cpu", "200"))
    assert done.returncode == 0, done.words()
    assert "cgroup" in done.mechanism("cpu")
    assert float(done.stdout) <= 0.22


def test_cpu_use_without_a_limit_is_not_limited(run):
    done = run(*PYTHON, SHARE.replace("< 3", "< 1"))
    assert float(done.stdout) > 0.25, done.words()


# This program reads for a second and writes for a second, both without the page cache. It then
# prints how many bytes it read and wrote.
MOVE = """
import mmap, os, sys, time
fd, block = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT), mmap.mmap(-1, 1 << 15)
for act in (os.preadv, os.pwritev):
    moved, end = 0, time.monotonic() + 1
    while time.monotonic() < end:
        moved += act(fd, [block], moved % (1 << 21))
    print(moved)
"""


def test_bytes_to_and_from_a_disk_are_limited_to_their_rate(run, tmp_path):
    folder = pathlib.Path.home() / "granted"
    folder.mkdir()
    (folder / "file").write_bytes(bytes(2 * MIB))
    policy = tmp_path / "policy.toml"
    policy.write_text('version = 1\n[limits]\nio = "512K"\n')
    words = (*PYTHON, MOVE, str(folder / "file"))
    free = run(*words, flags=("--write", str(folder)))
    held = run(*words, flags=("--write", str(folder), "--policy", str(policy)))
    assert held.mechanism("io") == "cgroup io"
    slow, fast = list(map(int, held.stdout.split())), list(map(int, free.stdout.split()))
    assert len(slow) == len(fast) == 2, (held.words(), free.words())
    assert all(0 < moved <= 3 * MIB // 2 for moved in slow), slow
    assert all(many >= 3 * few for many, few in zip(fast, slow, strict=True)), (fast, slow)


def test_reported_usage_is_the_kernels_count(run):
    """Let the target use half a second of CPU time, and check the report. The bounds are so wide
    that only a wrong unit makes the test fail.
    """
    code = "import time\nwhile time.process_time() < 0.5: pass"
    done = run(*PYTHON, code, flags=("--max-memory", str(LIMIT)))
    assert 500 <= done.report["usage"]["cpu_ms"] < 10_000, done.words()


def test_the_target_can_write_to_no_cgroup(run, person):
    done = run(*PYTHON, WRITABLE)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.words()
    argv = [person.python, *PYTHON[1:], WRITABLE]
    assert subprocess.check_output(argv, text=True) != "[]\n", "outside the sandbox"


def test_an_ended_run_leaves_no_cgroup(run):
    run(*PYTHON, "pass", flags=("--max-memory", str(LIMIT)))
    before = cgroups()
    for code in ("pass", f"bytearray({2 * LIMIT})", "import os; os.kill(os.getpid(), 9)"):
        run(*PYTHON, code, flags=("--max-memory", str(LIMIT)))
        assert cgroups() == before


def start(person) -> subprocess.Popen:
    """Start a run that lasts until it is stopped."""
    argv = person.corral_argv("run", "--max-memory", str(LIMIT), "--", *PYTHON, HOLD)
    process = person.popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    if process.stdout.readline() != b"1\n":
        process.kill()
        pytest.fail(process.communicate()[1].decode())
    return process


def test_the_next_run_removes_the_cgroup_of_a_killed_corral(person, run):
    """Kill corral. The target's processes end with it, and the next run removes their cgroup."""
    run(*PYTHON, "pass", flags=("--max-memory", str(LIMIT)))
    groups, running = cgroups(), processes()
    process = start(person)
    assert cgroups() > groups
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.read()  # returns when the last process of the tree has ended
    process.stdout.close()
    process.stderr.close()
    run(*PYTHON, "pass", flags=("--max-memory", str(LIMIT)))
    assert cgroups() == groups
    assert processes() <= running


def test_parallel_runs_have_their_own_limits(person, run):
    process = start(person)
    done = run(*PYTHON, f"bytearray({2 * LIMIT})", flags=("--max-memory", str(LIMIT)))
    assert done.kind == "memory", done.words()
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM


def test_explain_names_the_cgroup_that_run_uses(person):
    argv = ("explain", "--json", "--max-memory", str(LIMIT), "--", *PYTHON, "pass")
    plan = json.loads(person.corral(*argv).stdout)
    held = {control["control"]: control["mechanism"] for control in plan["controls"]}
    assert "cgroup" in held["memory"]
    assert any(str(LIMIT) in step["does"] and "cgroup" in step["does"] for step in plan["steps"])
