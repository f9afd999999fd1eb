"""Check without corral that the machine's kernel enforces the limits of cgroup v2."""

from __future__ import annotations

import errno
import os
import pathlib
import subprocess
import sys
import time

import pytest

MIB = 1 << 20
ENTER = 'echo 0 > "$0/cgroup.procs" && exec "$@"'
HOG_SIZE = 24 * MIB  # small, because a page fault takes a third of a millisecond in user-mode Linux
HOG = f"space = bytearray({HOG_SIZE}); print(len(space), flush=True)"
SPIN = "import time; end = time.monotonic() + {}\nwhile time.monotonic() < end: pass"
FORKS = """
import os, signal
children = []
try:
    while len(children) < 20:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
except OSError as error:
    print(error.errno, len(children))
else:
    print(0, len(children))
for pid in children:
    os.kill(pid, 9)
"""


@pytest.fixture
def group(subtree):
    """Yield a leaf cgroup with every controller of the subtree."""
    for name in (subtree / "cgroup.controllers").read_text().split():
        (subtree / "cgroup.subtree_control").write_text(f"+{name}")
    path = subtree / "trial"
    path.mkdir()
    yield path
    (path / "cgroup.kill").write_text("1")
    wait_until_empty(path)
    path.rmdir()


def wait_until_empty(path: pathlib.Path) -> None:
    while "populated 1" in (path / "cgroup.events").read_text():
        os.sched_yield()


def inside(group: pathlib.Path, code: str) -> subprocess.CompletedProcess:
    argv = ["sh", "-c", ENTER, str(group), sys.executable, "-ISc", code]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def table(path: pathlib.Path) -> dict[str, int]:
    return {key: int(value) for key, value in map(str.split, path.read_text().splitlines())}


def test_only_cgroup_v2_is_mounted():
    kinds = [line.split()[2] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    assert kinds.count("cgroup2") == 1
    assert "cgroup" not in kinds


def test_every_controller_reaches_the_subtree(subtree):
    controllers = (subtree / "cgroup.controllers").read_text().split()
    assert {"cpu", "io", "memory", "pids"} <= set(controllers)


def test_the_tests_run_as_the_requested_user():
    assert os.environ["RIG_USER"] == str(os.getuid())
    assert os.getresuid() == (os.getuid(),) * 3
    assert os.getgroups() in ([], [os.getgid()])


def test_the_kernel_kills_a_process_that_exceeds_memory_max(group):
    (group / "memory.max").write_text(str(HOG_SIZE // 2))
    (group / "memory.swap.max").write_text("0")
    done = inside(group, HOG)
    assert (done.returncode, done.stdout) == (-9, "")
    assert table(group / "memory.events")["oom_kill"] == 1


def test_the_kernel_allows_memory_below_memory_max(group):
    (group / "memory.max").write_text(str(HOG_SIZE * 2))
    done = inside(group, HOG)
    assert (done.returncode, done.stdout) == (0, f"{HOG_SIZE}\n")
    assert int((group / "memory.peak").read_text()) > HOG_SIZE


def test_the_kernel_denies_a_fork_that_exceeds_pids_max(group):
    (group / "pids.max").write_text("8")
    done = inside(group, FORKS)
    assert done.stdout.split() == [str(errno.EAGAIN), "7"]


def test_without_pids_max_every_fork_succeeds(group):
    assert inside(group, FORKS).stdout.split() == ["0", "20"]


@pytest.mark.parametrize(
    ("quota", "seconds", "low", "high"), [("20000", 3, 0.18, 0.22), ("max", 1, 0.5, 1.1)]
)
def test_cpu_max_limits_a_cgroup_to_its_share_of_the_processor(group, quota, seconds, low, high):
    (group / "cpu.max").write_text(f"{quota} 100000")
    start = time.monotonic()
    assert inside(group, SPIN.format(seconds)).returncode == 0
    share = table(group / "cpu.stat")["usage_usec"] / 1e6 / (time.monotonic() - start)
    assert low <= share <= high


def test_cgroup_kill_reaches_processes_in_another_session(group):
    code = "import os, signal; os.fork(); os.setsid(); print(1, flush=True); signal.pause()"
    argv = ["sh", "-c", ENTER, str(group), sys.executable, "-ISc", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert [process.stdout.readline(), process.stdout.readline()] == ["1\n", "1\n"]
        assert len((group / "cgroup.procs").read_text().split()) == 2
        (group / "cgroup.kill").write_text("1")
        assert process.wait() == -9
    wait_until_empty(group)
    assert (group / "cgroup.procs").read_text() == ""


def test_only_root_may_change_another_users_cgroup():
    try:
        pathlib.Path("/sys/fs/cgroup/init/cgroup.freeze").write_text("0")
    except PermissionError:
        changed = False
    else:
        changed = True
    assert changed == (os.getuid() == 0)


def test_user_namespaces_work():
    done = subprocess.run(
        ["unshare", "-Ur", "id", "-u"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
