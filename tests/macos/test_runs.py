"""Check on a real Mac that runtimes start under Seatbelt, that limits work, and that all processes
of a run end.
"""

import json
import os
import pathlib
import select
import shutil
import signal
import sys

import pytest

from corral.abi import darwin_proc, darwin_sandbox
from corral.platforms import current
from corral.platforms.macos import developer_tools
from corral.platforms.macos.process_table import ProcessTable
from corral.platforms.macos.process_tree import Tree
from corral.supervisor import findings

pytestmark = pytest.mark.skipif(
    sys.platform != "darwin", reason="only macOS has Seatbelt, libproc and jetsam"
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


def test_every_probe_succeeds_on_this_mac():
    found = {item.capability: item for item in findings.current_host(fresh=True).findings}
    absent = {name: item.evidence for name, item in found.items() if item.status != "proven"}
    assert absent == {}


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
    assert words["syscalls"] == ("seatbelt + disclaimed consent", "verified")
    assert words["tree"] == ("watcher + seatbelt", "applied")


def test_a_daemon_ends_with_its_target(mac):
    """Check that corral ends a daemon in each of ten runs. The daemon's parent ends at once, so
    corral sees only in some runs that this parent belongs to the target.
    """
    for _ in range(10):
        done = mac.run(sys.executable, "-c", DAEMON, flags=MANY)
        assert gone(int(done.stdout))


def test_programs_that_start_others_work(mac):
    """Run programs that execute another program: /bin/sh executes the selected shell, and git and
    python3 in /usr/bin execute the selected developer tools.
    """
    done = mac.run("/bin/sh", "-c", "echo hi")
    assert (done.returncode, done.stdout) == (0, b"hi\n"), done.stderr
    if not developer_tools.find_directory():
        pytest.skip("there are no developer tools")
    for program in ("/usr/bin/git", "/usr/bin/python3"):
        done = mac.run(program, "--version")
        assert done.returncode == 0, done.stderr
    done = mac.run("/bin/sh", "-c", "git --version && /usr/bin/git --version", flags=MANY)
    assert done.stdout.count(b"git version") == 2, done.stderr


def test_files_that_the_target_marks_immutable_are_still_removed_after_the_run(mac):
    source = pathlib.Path(mac.place) / "source"
    source.write_text("x")
    code = """
import os, shutil, stat, sys
shutil.copy2(sys.argv[1], sys.argv[2])
home = os.environ['HOME']
shutil.copy2(sys.argv[1], home + '/copy')
os.makedirs(home + '/a/b')
for path in (home + '/copy', home + '/a/b', home + '/a'):
    os.chflags(path, stat.UF_IMMUTABLE)
print('copied')
"""
    flags = ("--write", mac.place)
    done = mac.run(sys.executable, "-c", code, str(source), f"{mac.place}/copy", flags=flags)
    assert done.stdout == b"copied\n", done.stderr
    assert not list(pathlib.Path("/private/tmp").glob(f"corral-{os.geteuid()}-*"))


def test_libraries_that_inspect_the_machine_work(mac):
    code = "import concurrent.futures as f, os\nif __name__ == '__main__':\n  with f.ProcessPoolExecutor(1) as p: print(p.submit(abs, -3).result())"
    path = pathlib.Path(mac.place) / "pool.py"
    path.write_text(code)
    done = mac.run(sys.executable, str(path), flags=MANY)
    assert done.stdout == b"3\n", done.stderr
    if node := shutil.which("node"):
        done = mac.run(node, "-p", "typeof require('os').networkInterfaces()")
        assert done.stdout == b"object\n", done.stderr


def test_the_seatbelt_marker_is_visible_from_outside(mac):
    code = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    process = mac.start(sys.executable, "-c", code)
    pid = int(process.stdout.readline())
    assert darwin_sandbox.confined(pid)
    assert not darwin_sandbox.may_look_up(pid, "org.corral.imagined")
    assert darwin_sandbox.may_look_up(os.getpid(), "org.corral.imagined")
    assert darwin_proc.responsible_pid(pid) == pid
    process.communicate()


ENDED_MEANWHILE = 64


def test_a_fork_bomb_is_bounded(mac):
    """Check that the process limit stops a fork bomb. corral computes this limit from the number of
    processes that the user has before the start. If some of these processes end later, the fork
    bomb can start as many more.
    """
    code = "import os, time\nn = 0\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(600)\n    n += 1\nexcept OSError as e: print(e.errno, n, flush=True)"
    error, count = map(int, mac.run(sys.executable, "-c", code, flags=MANY).stdout.split())
    assert error == 35
    assert count <= 128 + ENDED_MEANWHILE


def test_kill_9_of_corral_ends_the_tree(mac):
    process = mac.start(sys.executable, "-c", DAEMON + "time.sleep(600)", flags=MANY)
    daemon = int(process.stdout.readline())
    assert not gone(daemon)
    os.kill(process.pid, signal.SIGKILL)
    assert process.stdout.read() == b""  # end of file: no process can write any more
    process.communicate()
    assert gone(daemon)


def test_a_stated_memory_limit_ends_the_run(mac):
    hog = "x = b'x' * (400 << 20); import time; time.sleep(600)"
    done, told = report(mac, sys.executable, "-c", hog, flags=("--max-memory", "128M"))
    assert (done.returncode, told["outcome"]["kind"]) == (137, "memory")


def test_cpu_time_and_timeout_end_the_run(mac):
    done, told = report(
        mac, sys.executable, "-c", "while True: pass", flags=("--max-cpu-time", "500ms")
    )
    assert (done.returncode, told["outcome"]["kind"]) == (137, "cpu_time")
    done, told = report(mac, "/bin/sleep", "600", flags=("--timeout", "300ms"))
    assert (done.returncode, told["outcome"]["kind"]) == (124, "timeout")


def test_a_run_leaves_no_private_directory(mac):
    assert (
        mac.run(
            sys.executable, "-c", "import os; os.makedirs(os.environ['HOME'] + '/a/b')"
        ).returncode
        == 0
    )
    assert not list(pathlib.Path("/private/tmp").glob(f"corral-{os.geteuid()}-*"))


def test_an_address_space_below_the_mapped_size_is_refused(mac):
    policy = pathlib.Path(mac.place) / "policy.toml"
    policy.write_text('version = 1\n[limits]\naddress_space = "64M"\n')
    done = mac.run("/usr/bin/true", flags=("--policy", str(policy)))
    assert done.returncode == 125
    assert b"RLIMIT_AS" in done.stderr
    loose = mac.run("/usr/bin/true", flags=("--policy", str(policy), "--best-effort"))
    assert loose.returncode == 0
    assert b"address_space is not enforced" in loose.stderr


def test_the_process_table_has_this_process_and_its_usage():
    table = ProcessTable()
    own = next(row for row in table.processes() if row.pid == os.getpid())
    assert own.unique == table.unique_id(os.getpid())
    assert own.parent == table.unique_id(os.getppid())
    used = table.usage(os.getpid())
    assert used.memory > 1 << 20
    assert used.cpu > 0
    assert used.tasks >= 1
    assert Tree(table, os.getpid(), own.unique, grouped=False).measure().memory >= used.memory >> 1


def test_the_process_table_reports_forks():
    table = ProcessTable()
    table.follow(os.getpid())
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert select.select([table.fileno()], [], [], 10)[0]
    table.drain()
    assert not select.select([table.fileno()], [], [], 0)[0]


def test_the_macos_backend_is_chosen():
    assert type(current.load()).__name__ == "Macos"
