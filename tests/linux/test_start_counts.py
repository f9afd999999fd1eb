"""Count the system calls and page faults of a start. Unlike times, they do not depend on the
machine's load.

The counts of a bare Python interpreter on the same host are subtracted. Each bound is 10 % above
the counts for CPython 3.11 to 3.13. A change that exceeds a bound needs a good reason.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import statistics
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the counts are for Linux")

SOURCE = pathlib.Path(importlib.util.find_spec("corral").origin).parents[1]
MAIN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from corral.__main__ import main; main()"
RUN = [sys.executable, "-I", "-c", MAIN, str(SOURCE), "run", "--", "/bin/true"]
BARE = [sys.executable, "-I", "-c", "pass"]
ZYGOTE = """
import sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
from corral.api import zygote
from corral.platforms import current
current.load().warm_up()
print(" ".join(set(sys.modules) - before))
"""
MAX_SYSTEM_CALLS = 1550
MAX_PAGE_FAULTS = 3000
MAX_ZYGOTE_MODULES = 90
ROUNDS = 5


@pytest.fixture
def environment(tmp_path):
    """Return an environment whose cache contains corral's compiled code and its findings about this
    host.
    """
    made = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    for _ in range(2):
        count_page_faults(RUN, made)
    return made


def count_page_faults(argv, environment):
    """Return the number of minor page faults of a process and of the processes that it waited
    for.
    """
    streams = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    pid = os.posix_spawn(argv[0], argv, environment, file_actions=streams)
    _, status, used = os.wait4(pid, 0)
    assert status == 0
    return used.ru_minflt


def trace(argv, environment, tmp_path):
    file = tmp_path / "trace"
    command = ["strace", "-f", "-o", str(file), *argv]
    # With pipes, corral would look for them in the processes above it. The number of calls would
    # then depend on how many descriptors these processes have.
    null = subprocess.DEVNULL
    subprocess.run(command, env=environment, check=True, stdin=null, stdout=null, stderr=null)
    lines = file.read_text(errors="replace").splitlines()
    return [line for line in lines if "resumed>" not in line and re.match(r"\d+ +\w+\(", line)]


@pytest.mark.rig("strace")
def test_a_start_needs_few_system_calls_and_forks(environment, tmp_path):
    run = trace(RUN, environment, tmp_path)
    bare = trace(BARE, environment, tmp_path)
    assert len(bare) > 100  # Sanity check: strace has recorded the interpreter's calls
    assert len(run) - len(bare) <= MAX_SYSTEM_CALLS
    pids = {line.split()[0] for line in run}
    assert len(pids) == 3, pids  # the processes are corral, init and the target


def test_a_start_needs_few_page_faults(environment):
    rounds = range(ROUNDS)
    run = statistics.median(count_page_faults(RUN, environment) for _ in rounds)
    bare = statistics.median(count_page_faults(BARE, environment) for _ in rounds)
    assert bare > 100  # Sanity check: the interpreter's page faults are counted
    assert run - bare <= MAX_PAGE_FAULTS


def test_the_zygote_has_few_modules(environment):
    """Count the zygote's modules. Each one makes every fork slower, because a fork copies the
    zygote's page tables.
    """
    argv = [sys.executable, "-I", "-c", ZYGOTE, str(SOURCE)]
    done = subprocess.run(argv, env=environment, check=True, capture_output=True, text=True)
    loaded = done.stdout.split()
    # Sanity check: the list does contain the zygote's modules.
    assert "corral.platforms.linux.spawn" in loaded
    assert len(loaded) <= MAX_ZYGOTE_MODULES, sorted(loaded)
    assert not {"re", "enum", "collections", "json", "socket", "subprocess"} & set(loaded)
