"""Test that a timeout counts the time that the machine sleeps (docs/decisions/0026).

The machine sleeps by the kernel's own test of suspend at the level "core": all processes are frozen, devices, interrupts
and clocks are suspended, and the kernel then waits for `pm_test_delay` seconds instead of calling the firmware. An
emulated firmware was tried too, but the timers do not run after it wakes up.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import pytest

from users import User

TIMEOUT = 60
LIBRARY = os.path.dirname(os.__file__)
TARGET = "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print('here', flush=True)"


@pytest.fixture
def person(person):
    """Return the user with corral and Python's library in memory, because the 9p root does not answer after a sleep."""
    place = pathlib.Path(tempfile.mkdtemp(dir="/dev/shm"))
    place.chmod(0o755)
    shutil.copytree(person.package, place / "src")
    shutil.copytree(LIBRARY, place / "library", symlinks=True)
    subprocess.run(["mount", "--bind", place / "library", LIBRARY], check=True)
    return User(person.name, person.uid, person.home, place / "src")


def start(person, *flags: str) -> subprocess.Popen:
    argv = person.corral_argv("run", *flags, "--", "python3", "-ISc", TARGET)
    pipe = subprocess.PIPE
    process = person.popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    return process


def asleep() -> float:
    """Return for how long this machine has slept. Only CLOCK_BOOTTIME counts that time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


def sleep_for(seconds: float) -> None:
    before = asleep()
    pathlib.Path("/sys/module/suspend/parameters/pm_test_delay").write_text("10")
    pathlib.Path("/sys/power/pm_test").write_text("core")
    while asleep() - before < seconds:
        pathlib.Path("/sys/power/state").write_text("mem")


def test_a_timeout_that_passes_while_the_machine_sleeps_ends_the_run(person):
    """The time awake is less than the timeout, so a clock that stops during sleep would not have ended the run."""
    report = person.home / "report.json"
    endless = start(person)
    began = time.monotonic()
    limited = start(person, "--timeout", f"{TIMEOUT}s", "--report", str(report))
    sleep_for(TIMEOUT)
    _, err = limited.communicate(timeout=300)
    awake = time.monotonic() - began
    assert (limited.returncode, "timeout limit" in err) == (124, True), err
    assert awake < TIMEOUT <= json.loads(report.read_text())["usage"]["wall_ms"] / 1000
    assert endless.communicate("anything\n", timeout=300)[0] == "here\n"
    assert endless.returncode == 0
