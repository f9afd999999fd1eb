"""Try to exceed the limits that do not need a cgroup. As a sanity check, check that the same acts
succeed below the limits.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import select
import signal
import subprocess

import pytest
from attempts import (
    BOTH_TIERS,
    PRELUDE,
    TABLE,
    everywhere,
    give,
    give_directory,
    inside,
    outside,
)

FORKS = """
import threading
reading, writing = os.pipe()
def more(count):
    children, said = [], "done"
    for _ in range(count):
        try:
            pid = os.fork()
        except OSError as error:
            said = errno.errorcode[error.errno]
            break
        if pid == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        children.append(pid)
    return children, said
def end(children):
    os.close(writing)
    for pid in children:
        os.waitpid(pid, 0)
"""


def test_a_fork_bomb_reaches_the_limit(user):
    code = (
        FORKS
        + """
children, said = more(int(sys.argv[1]))
answer = [len(children), said]
end(children)
"""
    )
    flags = ("--allow-subprocess", "--max-pids", "32")
    assert inside(user, code, "10", flags=flags) == [10, "done"]
    assert inside(user, code, "100", flags=flags) == [31, "EAGAIN"]
    assert inside(user, code, "100", flags=("--allow-subprocess",)) == [100, "done"]


def test_a_fork_bomb_leaves_the_host_alone(user):
    """Let a fork bomb reach its limit. Outside the sandbox, the same user must still be able to
    start processes, including another sandbox.
    """
    code = (
        f"import json, os, sys\n{PRELUDE}{FORKS}\nprint(more(100)[1], flush=True)\nsys.stdin.read()"
    )
    argv = user.corral_argv(
        "run", "--allow-subprocess", "--max-pids", "16", "--", user.python, "-c", code
    )
    process = user.popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout.readline() == b"EAGAIN\n"
        few = FORKS + "\nchildren, answer = more(20)\nend(children)"
        assert outside(user, few) == "done"
        assert inside(user, few, flags=("--allow-subprocess", "--max-pids", "32")) == "done"
    finally:
        process.communicate(timeout=60)


def test_threads_count_as_processes(user):
    code = """
import threading
gate = threading.Event()
threads = []
try:
    for _ in range(int(sys.argv[1])):
        threads.append(threading.Thread(target=gate.wait))
        threads[-1].start()
    said = "done"
except RuntimeError as error:
    threads.pop()
    said = str(error)
answer = [len(threads), said]
gate.set()
[thread.join() for thread in threads]
"""
    flags = ("--max-pids", "32")
    assert inside(user, code, "20", flags=flags) == [20, "done"]
    assert inside(user, code, "100", flags=flags) == [31, "can't start new thread"]


@BOTH_TIERS
def test_open_files_are_limited(user):
    code = """
import resource
kept = []
def hog(count):
    for _ in range(count):
        kept.append(os.dup(0))
answer = [tried(hog, 40), tried(hog, 1000)]
highest = max(kept)
for fd in kept:
    os.close(fd)
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    answer.append("raised")
except ValueError:
    answer.append("held")
answer.append(highest)
"""
    for seen in everywhere(user, code, flags=("--max-fds", "64")):
        assert seen == ["done", "EMFILE", "held", 63]
    assert inside(user, code, flags=("--max-fds", "2000"))[:2] == ["done", "done"]


FILL = """
places = [os.environ["HOME"], "/tmp", "/dev/shm", "/var/tmp"]
def fill(size):
    written = number = 0
    try:
        while written < size:
            with open(f"{places[number % 4]}/filler{number}", "wb", buffering=0) as file:
                for _ in range(8):
                    written += file.write(bytes(1 << 16))
            number += 1
    except OSError as error:
        return [written, errno.errorcode[error.errno]]
    return [written, "done"]
"""


def test_private_directories_share_one_limit(user):
    code = FILL + "answer = fill(int(sys.argv[1]))"
    flags = ("--max-disk", "4M")
    assert inside(user, code, str(2 << 20), flags=flags) == [2 << 20, "done"]
    written, said = inside(user, code, str(64 << 20), flags=flags)
    assert said == "ENOSPC"
    assert 3 << 20 <= written <= 4 << 20
    assert inside(user, code, str(16 << 20), flags=("--max-disk", "32M")) == [16 << 20, "done"]


def test_empty_files_are_counted(user):
    """Create empty files. They must count towards the disk limit, because each inode takes a
    kilobyte of kernel memory.
    """
    code = """
def flood(count):
    for number in range(count):
        os.close(os.open(f"/tmp/{number}", os.O_CREAT | os.O_WRONLY))
answer = [tried(flood, int(sys.argv[1])), len(os.listdir("/tmp"))]
"""
    said, count = inside(user, code, "100000", flags=("--max-disk", "4M"))
    assert said == "ENOSPC"
    assert 500 < count <= 1024
    assert inside(user, code, "3000", flags=("--max-disk", "1G"))[0] == "done"


def test_a_file_in_a_write_grant_is_bounded(user, scratch):
    code = """
os.chdir(sys.argv[1])
def written():
    with open("large", "wb", buffering=0) as file:
        for _ in range(32):
            file.write(bytes(1 << 16))
answer = {
    "written": tried(written),
    "truncated": tried(lambda: [put("sparse"), os.truncate("sparse", 1 << 30)]),
    "allocated": tried(lambda: os.posix_fallocate(os.open("allocated", os.O_CREAT | os.O_WRONLY), 0, 1 << 24)),
}
"""
    flags = ("--write", str(scratch))
    held = inside(user, code, str(scratch), flags=(*flags, "--max-disk", "1M"))
    assert held == dict.fromkeys(held, "EFBIG")
    assert max(path.stat().st_size for path in scratch.iterdir()) == 1 << 20
    assert set(inside(user, code, str(scratch), flags=flags).values()) == {"done"}


def test_a_target_that_does_not_ignore_sigxfsz_dies_of_it(user, scratch):
    """Check that SIGXFSZ kills `dd`. Python ignores this signal, and an ignored signal stays
    ignored after exec. Therefore corral, which is a Python program, must reset it before it starts
    a target.
    """
    path = str(scratch / "large")
    argv = ("dd", "if=/dev/zero", f"of={path}", "bs=65536", "count=64")
    done = user.run(*argv, flags=("--write", str(scratch), "--max-disk", "1M"))
    assert done.returncode == 128 + signal.SIGXFSZ
    assert os.path.getsize(path) == 1 << 20
    assert user.run(*argv, flags=("--write", str(scratch))).returncode == 0


@BOTH_TIERS
def test_private_memory_of_one_process_is_limited(user):
    """Check RLIMIT_DATA, which by default limits each process to 1 GiB."""
    code = """
def mapped(size):
    mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def allocated():
    libc.malloc.restype = ctypes.c_void_p
    if not libc.malloc(ctypes.c_size_t(1200 << 20)):
        raise OSError(ctypes.get_errno(), "")
answer = [tried(mapped, 512 << 20), tried(mapped, 1200 << 20), tried(allocated)]
"""
    for held in everywhere(user, code):
        assert held == ["done", "ENOMEM", "ENOMEM"]
    assert outside(user, code) == ["done"] * 3


@BOTH_TIERS
@pytest.mark.parametrize("stubborn", [False, True], ids=["default", "ignoring"])
def test_cpu_time_is_limited(user, scratch, stubborn):
    report = scratch / "report.json"
    code = (
        "import signal\n"
        + "signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n" * stubborn
        + "while True: pass"
    )
    flags = ("--max-cpu-time", "1s", "--report", str(report))
    done = user.run(user.python, "-c", code, flags=flags)
    told = json.loads(report.read_text())
    assert done.returncode in {128 + signal.SIGXCPU, 128 + signal.SIGKILL}
    assert told["outcome"]["kind"] == "cpu_time"
    # The kernel counts ticks for this limit. The ticks may add up to more time than is reported, so
    # the target may be ended before the reported time reaches 1 s.
    assert told["usage"]["cpu_ms"] >= 500


@BOTH_TIERS
def test_a_death_by_another_signal_is_not_reported_as_the_limit(user, scratch):
    report = scratch / "report.json"
    flags = ("--max-cpu-time", "10m", "--report", str(report))
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert user.run(user.python, "-c", code, flags=flags).returncode == 128 + signal.SIGKILL
    assert json.loads(report.read_text())["outcome"]["kind"] == "signalled"


def test_a_flood_on_stderr_is_passed_on(user):
    code = "import os\nfor _ in range(256): os.write(2, b'x' * 65536)\nprint('end')"
    done = user.run(user.python, "-c", code)
    assert (done.returncode, done.stdout) == (0, b"end\n")
    assert done.stderr.count(b"x") >= 256 * 65536


def test_a_full_stderr_without_a_reader_does_not_block_corral(user):
    """Let the target fill the stderr pipe until its timeout. corral's message about the timeout
    must not block.
    """
    code = "import os\nos.set_blocking(2, True)\nwhile True: os.write(2, b'x' * 4096)"
    argv = user.corral_argv("run", "--timeout", "300ms", "--", user.python, "-c", code)
    process = user.popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        assert process.wait(60) == 124
    finally:
        process.kill()
        process.communicate()


def test_a_closed_stderr_does_not_change_the_exit_code(user):
    """Close stderr. corral's own messages are then lost, but the run must continue."""
    code = "import os, signal\ntry: os.write(2, b'x')\nexcept BrokenPipeError: os._exit(9)"
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = user.popen(user.corral_argv("run", "--", user.python, "-c", code), stderr=writing)
    finally:
        os.close(writing)
    assert process.wait(60) == 9


DAEMON = """
import fcntl, os, signal, sys
if os.fork() == 0:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(lock, fcntl.LOCK_EX)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)  # closing stdout tells the waiting test that the daemon is ready
        os.dup2(null, 2)
        signal.pause()
    os._exit(0)
os.close(1)
"""


def locked(path):
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@BOTH_TIERS
def test_a_daemon_dies_with_the_target(user, scratch):
    """Let the target start a daemon in a new session, and end. corral must end the daemon, which
    holds a file lock as long as it lives.
    """
    give_directory(user, scratch / "work")
    path = give(user, scratch / "work/lock")
    ready = "\nif len(sys.argv) > 2: sys.stdin.read()"
    process = user.popen([user.python, "-c", DAEMON, path], stdout=subprocess.PIPE)
    process.communicate(timeout=60)
    assert locked(path)
    # Sanity check: outside, the daemon is still running. Find it by its lock, and kill it.
    inode = f":{os.stat(path).st_ino} "
    with open("/proc/locks", encoding="ascii") as locks:
        holder = next(line.split()[4] for line in locks if inode in line)
    os.kill(int(holder), signal.SIGKILL)
    flags = ("--allow-subprocess", "--write", str(scratch / "work"))
    argv = user.corral_argv("run", *flags, "--", user.python, "-c", DAEMON + ready, path, "wait")
    process = user.popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.read() == b""
    assert locked(path)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not locked(path)


SIBLINGS = """
import fcntl, os, time
def sibling(act):
    # CLONE_PARENT makes a child of the target's parent, which is a process of corral.
    pid = call("clone", 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        act()
        os._exit(7)
def daemon():
    os.setsid()
    fcntl.flock(os.open(sys.argv[1], os.O_WRONLY), fcntl.LOCK_EX)
    os.write(writing, b".")
    for fd in range(3):
        os.close(fd)
    signal.pause()
reading, writing = os.pipe()
sibling(lambda: os.write(writing, b"."))
sibling(lambda: os.write(writing, b".") and os.kill(os.getpid(), 9))
sibling(daemon)
seen = b""
while len(seen) < 3:
    seen += os.read(reading, 3)
for made in range(100):
    try:
        sibling(lambda: time.sleep(60))
    except BlockingIOError:
        break
time.sleep(0.2)  # corral may notice the siblings that have ended
print(made < 32, flush=True)
os._exit(3)
"""


@BOTH_TIERS
def test_siblings_of_the_target_neither_end_nor_outlive_it(user, scratch):
    """Make siblings of the target: processes that have the same parent as the target. The run must
    not end when a sibling ends, the process limit must count siblings, and all of them must end
    with the run.
    """
    give_directory(user, scratch / "work")
    path = give(user, scratch / "work/lock")
    code = f"import sys\n{PRELUDE}{SIBLINGS}"
    flags = ("--allow-subprocess", "--max-pids", "32", "--write", str(scratch / "work"))
    done = user.run(user.python, "-c", code, path, flags=flags)
    assert (done.returncode, done.stdout) == (3, b"True\n"), done.stderr
    assert not locked(path)


@BOTH_TIERS
def test_killing_corral_leaves_no_process(user, scratch):
    give_directory(user, scratch / "work")
    path = str(scratch / "work/lock")
    flags = ("--allow-subprocess", "--write", str(scratch / "work"))
    code = """
import fcntl, os, signal, sys
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
if os.fork() == 0:
    os.setsid()
os.write(1, b"r")
while True:
    signal.pause()
"""
    argv = user.corral_argv("run", *flags, "--", user.python, "-c", code, path)
    process = user.popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout.read(2) == b"rr"
    assert locked(path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # End of file means that every process of the tree has ended. Only a failing test reaches the
    # timeout.
    assert select.select([process.stdout], [], [], 90)[0]
    assert process.stdout.read() == b""
    assert not locked(path)
    assert user.run("/bin/true").returncode == 0  # the next run removes the private directory
    assert not glob.glob(f"/tmp/corral-{user.uid}-{process.pid}-*")
    process.stdout.close()


TIMEOUT = "2s"
"""Even on a busy machine a target needs less time than this to block a signal."""


@BOTH_TIERS
def test_a_tree_that_ignores_sigterm_is_killed_after_the_grace(user, scratch):
    report = scratch / "report.json"
    code = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.sigwait([signal.SIGTERM])
    os.write(1, b"asked\\n")
while True:
    signal.pause()
"""
    flags = ("--allow-subprocess", "--timeout", TIMEOUT, "--report", str(report))
    done = user.run(user.python, "-ISc", code, flags=flags)
    assert (done.returncode, done.stdout) == (124, b"asked\n")
    assert json.loads(report.read_text())["outcome"]["kind"] == "timeout"


@BOTH_TIERS
def test_a_tree_that_obeys_sigterm_ends_at_once(user):
    code = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
signal.sigwait([signal.SIGTERM])
print("left", flush=True)
sys.exit(3)
"""
    done = user.run(user.python, "-ISc", code, flags=("--timeout", TIMEOUT))
    assert (done.returncode, done.stdout) == (124, b"left\n")


@BOTH_TIERS
def test_a_target_cannot_lower_its_limit_on_core_files_to_zero(user):
    """Check that the target cannot lower its limit on core files from 1 byte to 0. If a process
    crashes, the kernel starts the host's core handler, unless this limit is exactly 1 byte.
    """
    code = """
import resource
CORE, NOFILE = resource.RLIMIT_CORE, resource.RLIMIT_NOFILE
def lowered(kind, act):
    said = tried(act, kind)
    return [said, resource.getrlimit(kind)[0] == 0]
def by_prlimit(kind):
    raw(PRLIMIT, 0, kind, struct.pack("=QQ", 0, 1), None)
def by_setrlimit(kind):
    raw(SETRLIMIT, kind, struct.pack("=QQ", 0, 1))
def with_junk(kind):
    raw(PRLIMIT, 7 << 32, kind | 7 << 32, struct.pack("=QQ", 0, 1), None)
answer = [lowered(kind, act) for kind in (CORE, NOFILE) for act in (by_prlimit, by_setrlimit, with_junk)]
""".replace("PRLIMIT", str(TABLE["prlimit64"])).replace("SETRLIMIT", str(TABLE["setrlimit"]))
    assert inside(user, code) == [["done", False]] * 3 + [["done", True]] * 3
    assert outside(user, code) == [["done", True]] * 6


@BOTH_TIERS
def test_no_core_is_dumped(user, scratch):
    code = """
import resource, signal
os.chdir(sys.argv[1])
limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
"""
    crash = f"import os, sys\n{code}\nprint(limit, flush=True)\nos.abort()"
    flags = ("--write", str(scratch))
    done = user.run(user.python, "-c", crash, str(scratch), flags=flags)
    assert (done.returncode, done.stdout) == (128 + signal.SIGABRT, b"1\n")
    assert os.listdir(scratch) == []
    with open("/proc/sys/kernel/core_pattern", encoding="ascii") as file:
        pattern = file.read().strip()
    process = user.popen([user.python, "-c", crash, str(scratch)], stdout=subprocess.PIPE)
    limit = process.communicate()[0].strip()
    if not pattern.startswith(("|", "/")) and limit == b"-1":
        # Sanity check: outside, the same program leaves a core file.
        assert len(os.listdir(scratch)) == 1
