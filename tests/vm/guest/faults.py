"""Test faults that affect a whole host: the clock is changed, or the memory of corral's own cgroup
is used up.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import time

import pytest

DAY = 24 * 3600
FORKS = """
import os, sys
print("ready", flush=True)
for line in sys.stdin:
    try:
        print("allowed" if os.fork() else os._exit(0), flush=True)
    except OSError:
        print("denied", flush=True)
"""


def start(person, *flags: str) -> subprocess.Popen:
    argv = person.corral_argv("run", *flags, "--", "python3", "-ISc", FORKS)
    pipe = subprocess.PIPE
    process = person.popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    return process


def set_clock(seconds: float) -> None:
    time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)


def test_setting_the_clock_neither_ends_nor_delays_a_run(person):
    report = person.home / "report.json"
    endless = start(person)
    limited = start(person, "--timeout", "10s", "--report", str(report))
    set_clock(-DAY)
    listed = person.corral("ps")
    assert listed.returncode == 0, listed.stderr
    assert b"-" not in listed.stdout.split(b"\n")[1].split()[2]  # the run's age is not negative
    set_clock(2 * DAY)
    code = limited.wait(200)
    set_clock(-DAY)
    assert (code, "timeout limit" in limited.communicate()[1]) == (124, True)
    assert 10_000 <= json.loads(report.read_text())["usage"]["wall_ms"] < DAY * 1000
    assert endless.communicate("fork\n", timeout=200)[0] == "denied\n"
    assert endless.returncode == 0


@pytest.mark.parametrize("most", ["0", "1M"])
def test_no_process_start_is_allowed_if_corrals_cgroup_has_no_memory_left(person, subtree, most):
    """Use up the memory of corral's cgroup. The kernel may or may not kill the supervisor, but in
    both cases the target must not get another process.
    """
    (subtree / "cgroup.subtree_control").write_text("+memory")
    tight = subtree / f"tight-{most}"
    tight.mkdir()
    process = start(person)
    (tight / "cgroup.procs").write_text(str(process.pid))
    (tight / "memory.max").write_text(most)
    answers = set()
    for _ in range(50):
        try:
            process.stdin.write("fork\n")
            process.stdin.flush()
        except BrokenPipeError:
            break
        answers.add(process.stdout.readline())
    assert answers <= {"denied\n", ""}
    _, err = process.communicate(timeout=200)
    assert "Traceback" not in err
    wanted = FORKS.encode()
    left = [one for one in filter(str.isdigit, os.listdir("/proc")) if wanted in cmdline(one)]
    assert left == []
    tight.rmdir()


def cmdline(pid: str) -> bytes:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
