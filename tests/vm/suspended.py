"""Run in a virtual machine as root: put the machine to sleep during a run, and print whether corral
then notices that the run's timeout has passed.

To sleep, the machine uses the kernel's own suspend test at the "core" level. This test freezes
processes, suspends devices, interrupts and clocks, and then waits for `pm_test_delay` seconds
instead of calling the firmware.

After the sleep the 9p root does not answer, so processes that use it cannot end. Therefore the
target only prints that it was asked to stop, and this program turns the machine off.
"""

from __future__ import annotations

import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, "/srv/tests")
from users import SOURCE, User

TIMEOUT = 60
# The target calls its handler once before the sleep, so that everything that the handler needs is in memory.
TARGET = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"asked to stop\\n"))
os.kill(os.getpid(), signal.SIGTERM)
while True:
    signal.pause()
"""


def asleep() -> float:
    """Return how long this machine has slept. Only CLOCK_BOOTTIME counts that time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


def copy_to_memory() -> pathlib.Path:
    """Copy corral and Python's library to a tmpfs, because corral imports modules after the sleep. Return the path of
    corral's copy.
    """
    place = pathlib.Path(tempfile.mkdtemp(dir="/dev/shm"))
    place.chmod(0o755)
    library = os.path.dirname(os.__file__)
    shutil.copytree(SOURCE, place / "src")
    unused = shutil.ignore_patterns("test", "lib2to3", "idlelib", "dist-packages")
    shutil.copytree(library, place / "library", symlinks=True, ignore=unused)
    subprocess.run(["mount", "--bind", place / "library", library], check=True)
    return place / "src"


def start(user: User, *flags: str) -> subprocess.Popen:
    argv = user.corral_argv("run", *flags, "--", "python3", "-ISc", TARGET)
    process = user.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"asked to stop\n"
    return process


def main() -> None:
    user = User("root", 0, pathlib.Path.home(), copy_to_memory())
    endless, began = start(user), time.monotonic()
    limited = start(user, "--timeout", f"{TIMEOUT}s")
    pathlib.Path("/sys/module/suspend/parameters/pm_test_delay").write_text("10")
    pathlib.Path("/sys/power/pm_test").write_text("core")
    while asleep() < TIMEOUT:
        pathlib.Path("/sys/power/state").write_text("mem")
    said = os.read(limited.stdout.fileno(), 100).decode().strip()
    awake = time.monotonic() - began
    other = select.select([endless.stdout], [], [], 0)[0]
    print(f"limited: {said}; endless: {'asked' if other else 'not asked'}", flush=True)
    print(f"awake for less than the timeout: {awake < TIMEOUT}", flush=True)
    os.sync()


if __name__ == "__main__":
    signal.alarm(300)
    try:
        main()
    finally:
        pathlib.Path("/proc/sysrq-trigger").write_text("o")
        time.sleep(60)
