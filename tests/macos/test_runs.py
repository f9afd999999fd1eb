"""Runtimes start behind the wall, limits hold, and the whole tree ends, on a real Mac."""

import json
import os
import pathlib
import select
import shutil
import signal
import sys

import pytest

from corral.platforms import current
from corral.platforms.macos.process_table import ProcessTable
from corral.platforms.macos.process_tree import Tree
from corral.supervisor import findings

pytestmark = pytest.mark.skipif(
    sys.platform != "darwin", reason="Seatbelt, libproc and jetsam are on macOS"
)
MANY = ("--allow-subprocess",)
DAEMON = """
import os, time
ready, told = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        print(os.getpid(), flush=True)
        os.write(told, b"x")
        time.sleep(600)
    os._exit(0)
os.wait()
os.read(ready, 1)
"""


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def report(mac, *command, flags=()):
    path = pathlib.Path(mac.place) / "report"
    done = mac.run(*command, flags=("--report", str(path), *flags))
    return done, json.loads(path.read_text())


def test_every_probe_holds_on_this_mac():
    found = {item.capability: item for item in findings.current_host(fresh=True).findings}
    for name in ("seatbelt", "door", "rlimits", "nproc", "watcher", "sampling"):
        assert found[name].status == "proven", found[name].evidence


def test_python_starts_with_its_libraries(mac):
    done = mac.run(
        sys.executable, "-c", "import ctypes, json, socket, sqlite3, ssl, threading; print('ran')"
    )
    assert (done.returncode, done.stdout) == (0, b"ran\n"), done.stderr


def test_node_starts(mac):
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node on this machine")
    done = mac.run(node, "-e", "console.log(require('fs').realpathSync('.').length > 0)")
    assert (done.returncode, done.stdout) == (0, b"true\n"), done.stderr


def test_the_walls_are_reported_as_verified(mac):
    _, told = report(mac, "/usr/bin/true")
    words = {held["control"]: (held["mechanism"], held["status"]) for held in told["controls"]}
    assert words["filesystem"] == words["network"] == ("seatbelt", "verified")
    assert words["tree"] == ("watcher + seatbelt", "applied")


def test_a_daemon_that_left_everything_ends_with_its_target(mac):
    done = mac.run(sys.executable, "-c", DAEMON, flags=MANY)
    assert gone(int(done.stdout))


def test_kill_9_of_corral_ends_the_tree(mac):
    process = mac.start(sys.executable, "-c", DAEMON + "time.sleep(600)", flags=MANY)
    daemon = int(process.stdout.readline())
    assert not gone(daemon)
    os.kill(process.pid, signal.SIGKILL)
    assert process.stdout.read() == b""  # everybody who could write there has ended
    process.communicate()
    assert gone(daemon)


def test_a_memory_limit_that_is_stated(mac):
    hog = "x = b'x' * (400 << 20); import time; time.sleep(600)"
    done, told = report(mac, sys.executable, "-c", hog, flags=("--max-memory", "128M"))
    assert (done.returncode, told["outcome"]["kind"]) == (137, "memory")


def test_cpu_time_and_timeout(mac):
    done, told = report(
        mac, sys.executable, "-c", "while True: pass", flags=("--max-cpu-time", "500ms")
    )
    assert (done.returncode, told["outcome"]["kind"]) == (137, "cpu_time")
    done, told = report(mac, "/bin/sleep", "600", flags=("--timeout", "300ms"))
    assert (done.returncode, told["outcome"]["kind"]) == (124, "timeout")


def test_a_run_leaves_nothing(mac):
    assert (
        mac.run(
            sys.executable, "-c", "import os; os.makedirs(os.environ['HOME'] + '/a/b')"
        ).returncode
        == 0
    )
    assert not list(pathlib.Path("/private/tmp").glob(f"corral-{os.geteuid()}-*"))


def test_an_address_space_below_what_is_mapped_refuses_the_run(mac):
    policy = pathlib.Path(mac.place) / "policy.toml"
    policy.write_text('version = 1\n[limits]\naddress_space = "64M"\n')
    done = mac.run("/usr/bin/true", flags=("--policy", str(policy)))
    assert done.returncode == 125
    assert b"RLIMIT_AS" in done.stderr


def test_the_process_table_sees_this_process_and_its_use():
    table = ProcessTable()
    own = next(row for row in table.processes() if row.pid == os.getpid())
    assert own.unique == table.unique_id(os.getpid())
    assert own.parent == table.unique_id(os.getppid())
    used = table.usage(os.getpid())
    assert used.memory > 1 << 20
    assert used.cpu > 0
    assert used.tasks >= 1
    assert Tree(table, os.getpid(), own.unique, grouped=False).measure().memory >= used.memory >> 1


def test_forks_are_told():
    table = ProcessTable()
    table.follow(os.getpid())
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert select.select([table.fileno()], [], [], 10)[0]
    table.drain()
    assert not select.select([table.fileno()], [], [], 0)[0]


def test_the_backend_is_this_one():
    assert type(current.load()).__name__ == "Macos"
