"""Let a target reach each limit, as root and as an ordinary user.

The tests are meant for hosts without working cgroups. There corral samples: it measures the usage
again and again. The tests also pass with cgroups, because they do not check which mechanism
enforces a limit.
"""

from __future__ import annotations

import json
import os
import pathlib
import select
import signal
import subprocess
import sys

import pytest
from traces import PATIENCE, Traces, children, ended

from corral.platforms.linux import usage

MIB = 1 << 20
LIMIT = ("--max-memory", "256M")
HOLD = "\nprint('held', flush=True)\nsys.stdin.read()\n"

# Each program allocates one kind of memory, as many MiB as its argument says, and keeps it.
HOGS = {
    "private": "kept.append(bytearray(b'x' * MIB))",
    "shared": "kept.append(mmap.mmap(-1, MIB)); kept[-1].write(b'x' * MIB)",
    "memfd": "kept or kept.append(os.memfd_create('hog')); os.write(kept[0], b'x' * MIB)",
    "tmp": "open('/tmp/hog', 'ab').write(b'x' * MIB)",
    "shm": "open('/dev/shm/hog', 'ab').write(b'x' * MIB)",
    "unlinked": "kept or (kept.append(open('/tmp/hog', 'wb', buffering=0)), os.unlink('/tmp/hog')); kept[0].write(b'x' * MIB)",
    "mapped memfd": """
    if not kept:
        fd = os.memfd_create('hog')
        os.truncate(fd, int(sys.argv[1]) * MIB)
        kept.append(mmap.mmap(fd, int(sys.argv[1]) * MIB))
    kept[0].write(b'x' * MIB)""",
    "forgotten memfd": """
    if not kept:
        fd = os.memfd_create('hog')
        os.truncate(fd, int(sys.argv[1]) * MIB)
        kept.append(mmap.mmap(fd, int(sys.argv[1]) * MIB))
        os.close(fd)
    kept[0].write(b'x' * MIB)""",
    "page tables": """
    kept.append(mmap.mmap(-1, 512 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ))
    kept[-1].madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, 512 * MIB, 2 * MIB):
        kept[-1][at]""",
}
WAIT = "import select\nselect.select([], [], [], 0.5)\nprint('held')"
# Wait until a sample ends the run. On a busy machine this may take a while. If no sample ends the
# run, the timeout does, and the test fails.
STAY = "\nsignal.pause()\n"
LATEST = ("--timeout", "40s")
PRELUDE = "import mmap, os, signal, sys, time\nMIB = 1 << 20\nkept = []\n"


class Run:
    """A finished `corral run` and its report."""

    def __init__(self, user, scratch, *command, flags=(), **options):
        path = scratch / "report.json"
        done = user.run(*command, flags=(*flags, "--report", str(path)), **options)
        self.code, self.out, self.err = done.returncode, done.stdout.decode(), done.stderr.decode()
        self.report = json.loads(path.read_text())
        path.unlink()
        self.kind = self.report["outcome"]["kind"]
        self.hit = self.report["hit"]
        self.usage = self.report["usage"]


@pytest.fixture
def run(user, scratch):
    def python(code, *arguments, flags=(), **options):
        command = (user.python, "-ISc", PRELUDE + code, *arguments)
        return Run(user, scratch, *command, flags=flags, **options)

    return python


def run_until_said(run, word, code, *arguments, flags):
    """Run a target that has to print `word` before its timeout. If it is too slow, try again with a
    longer timeout.
    """
    for seconds in (4, 16, 64):
        done = run(code, *arguments, flags=(*flags, "--timeout", f"{seconds}s"))
        if word in done.out:
            break
    return done


def hog(kind: str) -> str:
    body = HOGS[kind]
    body = body if body.startswith("\n") else f"\n    {body}"
    return f"for _ in range(int(sys.argv[1])):{body}\nprint('took it')\n"


@pytest.mark.parametrize("kind", list(HOGS))
def test_every_kind_of_memory_counts_towards_the_limit(run, kind):
    flags = (*LIMIT, "--max-disk", "4G", *LATEST)
    over = run(hog(kind) + STAY, "600", flags=flags)
    assert (over.kind, over.code, over.hit) == ("memory", 137, ["memory"]), over.err
    assert "the target hit its memory limit (256M); to allow more: --max-memory 512M\n" in over.err
    assert over.usage["memory"] > 256 * MIB


def test_memory_below_the_limit_does_not_end_the_run(run):
    """Keep 20 MiB of each kind of memory in `HOGS` while the supervisor takes a few samples. The sum
    is below the limit, so corral must not stop the target. If the supervisor counted the pages of
    mapped files twice, the sum could be above the limit.
    """
    code = "".join(f"kept = []\nheld.append(kept)\n{hog(kind)}" for kind in HOGS)
    done = run("held = []\n" + code + WAIT, "20", flags=(*LIMIT, "--max-disk", "4G"))
    assert (done.kind, done.code, done.hit) == ("exited", 0, []), done.err
    assert done.out == "took it\n" * len(HOGS) + "held\n"
    assert done.usage["memory"] > len(HOGS) * 20 * MIB


MANY = """
share = int(sys.argv[1]) * MIB
for number in range(50):
    if os.fork() == 0:
        kept.append(bytearray(b'x' * share))
        signal.pause()
"""


def test_memory_of_many_small_processes_is_added_up(run):
    flags = (*LIMIT, "--allow-subprocess", *LATEST)
    over = run(MANY + STAY, "40", flags=flags)
    assert (over.kind, over.code, over.hit) == ("memory", 137, ["memory"]), over.err
    assert 2 < over.usage["tasks"] <= 51


# Each of `count` processes allocates `share` MiB and shares this memory with eight children, which
# are replaced again and again. The first child has very many mappings: reading them takes longer
# than the other children live. The memory grows only after the children have started.
REPLACED = """
import ctypes
count, share, seconds = int(sys.argv[1]), int(sys.argv[2]) * MIB, float(sys.argv[3])
end = time.monotonic() + seconds
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
def scatter(pages):
    room = mmap.mmap(-1, pages * 4096, flags=PRIVATE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    protect = ctypes.CDLL(None).mprotect
    for at in range(0, pages, 2):
        protect(ctypes.c_void_p(start + at * 4096), 4096, mmap.PROT_READ)
    time.sleep(seconds)
    os._exit(0)
def hold():
    room, at, children, start = mmap.mmap(-1, share, flags=PRIVATE), 0, 0, time.monotonic()
    room.madvise(mmap.MADV_NOHUGEPAGE)
    while time.monotonic() < end:
        while children < 8:
            children += 1
            if os.fork() == 0:
                time.sleep(0.04 + os.getpid() % 10 / 400)
                os._exit(0)
        while at < min(share, (time.monotonic() - start - 1) * 20 * MIB):
            room[at], at = 1, at + 4096
        os.wait()
        children -= 1
    os._exit(0)
if os.fork() == 0:
    scatter(20_000)
time.sleep(0.5)
for _ in range(count):
    if os.fork() == 0:
        hold()
time.sleep(seconds)
print('held', flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_memory_cannot_be_hidden_by_replacing_processes(run, tier):
    """Replace processes again and again. A sample first lists the run's processes, so it misses the
    memory of processes that start after that. The limit must still be enforced.
    """
    flags = ("--max-memory", "100M", "--allow-subprocess")
    over = run(REPLACED, "3", "80", "30", flags=(*flags, *LATEST))
    assert (over.kind, over.code, over.hit) == ("memory", 137, ["memory"]), over.err
    # Sanity check: with 3 x 12 MiB the same program stays below the limit.
    below = run(REPLACED, "3", "12", "4", flags=flags)
    assert (below.kind, below.out) == ("exited", "held\n"), below.err


def test_memory_that_processes_share_counts_once(run):
    """Make sixty forks share 150 MiB. If each fork counted separately, the sum would be nearly 9
    GiB, far above the limit.
    """
    code = """
kept.append(bytearray(b'x' * (100 * MIB)))
kept.append(mmap.mmap(-1, 50 * MIB))
kept[1].write(b'x' * (50 * MIB))
reading, writing = os.pipe()
ready, tell = os.pipe()
for number in range(60):
    if os.fork() == 0:
        os.close(writing)
        sum(memoryview(kept[0])[::4096])
        sum(memoryview(kept[1])[::4096])
        os.write(tell, b'.')
        os.read(reading, 1)
        os._exit(0)
got = 0
while got < 60:
    got += len(os.read(ready, 60))
end = time.monotonic() + 0.5
while time.monotonic() < end:
    time.sleep(0.05)
os.close(writing)
for number in range(60):
    os.wait()
print('shared')
"""
    done = run(code, flags=(*LIMIT, "--allow-subprocess"))
    assert (done.kind, done.code, done.out, done.hit) == ("exited", 0, "shared\n", []), done.err


BOMB = """
denied = 0
while True:
    try:
        if os.fork() == 0:
            signal.pause()
    except BlockingIOError:
        denied += 1
        if denied == 1:
            print('denied', flush=True)
    if denied > 2000:
        signal.pause()
"""


def test_a_fork_bomb_ends_at_its_deadline(user, run):
    traces = Traces(user.home / ".cache")
    flags = ("--allow-subprocess", "--max-pids", "24")
    done = run_until_said(run, "denied", BOMB, traces.argument, flags=flags)
    assert (done.kind, done.code, done.hit) == ("timeout", 124, ["timeout"]), done.err
    assert done.out == "denied\n"
    assert traces.left() == {}


def test_a_fork_bomb_that_ignores_sigterm_ends(user, scratch):
    """Start a fork bomb: every process forks endlessly, ignores SIGTERM and never sleeps."""
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try: os.fork()
    except OSError: pass
"""
    traces = Traces(user.home / ".cache")
    user.grace_seconds = 0.2
    flags = ("--allow-subprocess", "--max-pids", "16", "--timeout", "2s")
    done = Run(user, scratch, user.python, "-ISc", PRELUDE + code, traces.argument, flags=flags)
    assert (done.kind, done.code, done.hit) == ("timeout", 124, ["timeout"]), done.err
    assert done.usage["cpu_ms"] > 100  # the CPU time of the killed processes is counted, too
    assert traces.left() == {}


SPIN = """
for number in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        break
while True:
    pass
"""


@pytest.mark.parametrize(("millicores", "processes", "seconds"), [(100, 1, 5), (1500, 3, 3)])
def test_a_share_of_the_processors_is_enforced(run, millicores, processes, seconds):
    cores = len(os.sched_getaffinity(0))
    if cores * 1000 < millicores:
        pytest.skip(f"{millicores} millicores of {cores} processors are not a limit")
    flags = ("--allow-subprocess", "--max-cpu", str(millicores), "--timeout", f"{seconds}s")
    before = idle_seconds()
    done = run(SPIN, str(processes), flags=flags)
    idle = (idle_seconds() - before) / (done.usage["wall_ms"] / 1000)
    assert (done.kind, done.code) == ("timeout", 124), done.err
    asked, share = millicores / 1000, done.usage["cpu_ms"] / done.usage["wall_ms"]
    assert share <= 1.25 * asked, done.usage
    # The target may get less than its share only if other processes kept the processors busy.
    assert share >= 0.75 * asked or idle < cores - asked, (done.usage, idle)


def idle_seconds() -> float:
    """Return how many seconds all processors together have been idle since boot."""
    first = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()
    return (int(first[4]) + int(first[5])) / os.sysconf("SC_CLK_TCK")


def test_a_busy_target_without_a_limit_is_never_paused(run):
    """Sanity check for the tests of CPU limits: run a busy target without a limit. It must be able
    to run nearly all the time.

    The test uses a time that the kernel counts for the target: the time in which the target runs or
    waits for a processor. Time in which corral pauses the target is not part of it.
    """
    code = """
def busy_seconds():
    ran, waited, _ = open("/proc/self/schedstat").read().split()
    return (int(ran) + int(waited)) / 1e9
began, before = time.monotonic(), busy_seconds()
while time.monotonic() < began + 2: pass
print((busy_seconds() - before) / (time.monotonic() - began))
"""
    assert float(run(code).out) > 0.9


def test_cpu_time_of_all_processes_is_added_up(run):
    """Let four processes use CPU time. The limit must apply to their sum."""
    flags = ("--allow-subprocess", "--max-cpu-time", "1s", *LATEST)
    done = run(SPIN, "4", flags=flags)
    assert (done.kind, done.code, done.hit) == ("cpu_time", 137, ["cpu_time"]), done.err
    # If corral applied the limit to each process, the four would use 4000 ms before it acts.
    assert 1000 <= done.usage["cpu_ms"] < 4000


def test_cpu_time_of_ended_processes_counts(run):
    code = """
while True:
    if os.fork() == 0:
        while time.process_time() < 0.1: pass
        os._exit(0)
    os.wait()
"""
    flags = ("--allow-subprocess", "--max-cpu-time", "1s", *LATEST)
    done = run(code, flags=flags)
    assert (done.kind, done.code, done.hit) == ("cpu_time", 137, ["cpu_time"]), done.err


UNWAITED = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN if sys.argv[1] == 'ignored' else signal.SIG_DFL)
for number in range(12):
    if os.fork() == 0:
        while time.process_time() < 0.25:
            pass
        os._exit(0)
    try:
        os.wait()
    except ChildProcessError:
        pass
print('burnt')
"""


@pytest.mark.parametrize("how", ["ignored", "waited for"])
def test_cpu_time_of_children_that_no_process_waits_for_is_not_counted(user, run, how):
    """Use three seconds of CPU time in twelve processes, under a limit of two seconds. If corral
    enforces the limit by sampling, it can count the time of an ended child only if the parent has
    waited for the child.
    """
    flags = ("--allow-subprocess", "--max-cpu-time", "2s")
    counted = "sampling" not in mechanisms(user, flags) or how == "waited for"
    done = run(UNWAITED, how, flags=flags)
    assert ("burnt" in done.out, done.hit) == ((False, ["cpu_time"]) if counted else (True, []))


def test_cpu_time_below_the_limit_does_not_end_the_run(run):
    code = "while time.process_time() < 0.3: pass"
    done = run(code, flags=("--allow-subprocess", "--max-cpu-time", "2s"))
    assert (done.kind, done.code, done.hit) == ("exited", 0, []), done.err
    assert 300 <= done.usage["cpu_ms"] < 2000


def test_cpu_time_of_orphans_is_reported(run):
    """Leave children that outlive the target. corral must kill them, and report their CPU time."""
    code = """
reading, writing = os.pipe()
if os.fork() == 0:
    while time.process_time() < 0.5: pass
    os.write(writing, b'x')
    signal.pause()
os.read(reading, 1)
"""
    done = run(code, flags=("--allow-subprocess",))
    assert (done.kind, done.code) == ("exited", 0), done.err
    assert done.usage["cpu_ms"] >= 450, done.usage


def test_descriptors_are_limited(run):
    code = """
import errno
try:
    while len(kept) < int(sys.argv[1]): kept.append(os.dup(0))
    print('room')
except OSError as error:
    print(errno.errorcode[error.errno], max(kept))
"""
    over = run(code, "100", flags=("--max-fds", "64"))
    assert (over.kind, over.code, over.out) == ("exited", 0, "EMFILE 63\n"), over.err
    assert run(code, "40", flags=("--max-fds", "64")).out == "room\n"


FILL = """
import errno
try:
    for number in range(int(sys.argv[1])):
        with open(f'/tmp/{number}', 'wb', buffering=0) as file:
            file.write(b'x' * int(sys.argv[2]))
    print('room', flush=True)
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
"""


@pytest.mark.parametrize("size", [MIB, 0], ids=["blocks", "inodes"])
def test_reaching_max_disk_is_in_the_report(run, size):
    over = run(FILL, "2000", str(size), flags=("--max-disk", "4M"))
    assert (over.kind, over.code, over.out) == ("exited", 0, "ENOSPC\n"), over.err
    assert over.hit == ["disk"]


def test_staying_below_max_disk_is_not_reported(run):
    below = run(FILL, "3", str(MIB), flags=("--max-disk", "4M"))
    assert (below.kind, below.code, below.out, below.hit) == ("exited", 0, "room\n", []), below.err


def test_reaching_max_disk_is_reported_beside_a_fatal_limit(run):
    code = FILL + STAY
    done = run_until_said(run, "ENOSPC", code, "2000", str(MIB), flags=("--max-disk", "4M"))
    assert (done.kind, done.hit) == ("timeout", ["timeout", "disk"]), done.err


class Held:
    """A run that prints `held` and then reads its stdin."""

    def __init__(self, user, *flags):
        argv = user.corral_argv("run", *flags, "--", user.python, "-ISc", PRELUDE + HOLD)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = user.popen(argv, **pipes)

    def __enter__(self):
        assert self.process.stdout.readline() == b"held\n", self.process.stderr.read()
        supervisor = self.process.pid
        (init,) = children(supervisor)
        return {"supervisor": supervisor, "init": init}

    def __exit__(self, *_):
        self.process.communicate(timeout=PATIENCE)


def switches(pid: int) -> int:
    """Return how often a process has slept, which is also how often it has woken up."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    rows = dict(line.split(":\t") for line in text.splitlines() if ":\t" in line)
    return int(rows["voluntary_ctxt_switches"])


def settle(pids) -> dict[str, int]:
    """Wait until none of the processes has woken up for a second. Return how often each has woken
    up until then.

    The wait is necessary because the supervisor wakes up half a second after the start, to import
    its last modules.
    """
    seen: dict[str, int] = {}
    agreed = 0
    for _ in range(500):
        now = {name: switches(pid) for name, pid in pids.items()}
        agreed = agreed + 1 if now == seen else 0
        if agreed == 50:
            return now
        seen = now
        select.select([], [], [], 0.02)
    pytest.fail(f"the processes kept waking up: {seen}")


LOOK = 1500
"""The time, in milliseconds, during which an idle process must not wake up. The test has to sleep,
because no descriptor reports that nothing happened.
"""


def test_idle_processes_do_not_wake_up(user):
    with Held(user, "--timeout", "10m") as pids:
        before = settle(pids)
        select.select([], [], [], LOOK / 1000)
        assert {name: switches(pid) for name, pid in pids.items()} == before


@pytest.mark.parametrize("flags", [LIMIT, ("--allow-subprocess", "--max-cpu-time", "10m")])
def test_a_sampled_limit_wakes_only_the_supervisor(user, flags):
    """Sanity check for the tests that expect no wake-ups: a sampled limit wakes the supervisor ten
    times a second, but does not wake init.
    """
    with Held(user, *flags) as pids:
        before = {name: switches(pid) for name, pid in pids.items()}
        select.select([], [], [], LOOK / 1000)
        after = {name: switches(pid) for name, pid in pids.items()}
    if "sampling" not in mechanisms(user, flags):
        pytest.skip("a cgroup enforces the limit here")
    assert after["supervisor"] - before["supervisor"] >= 5
    assert after["init"] - before["init"] <= 1


def mechanisms(user, flags) -> set[str]:
    told = user.corral("explain", "--json", *flags, "--", "/bin/true")
    return {held["mechanism"] for held in json.loads(told.stdout)["controls"]}


def traced_polls(user, *flags) -> int:
    """Count with strace how often the supervisor calls poll while its target is idle."""
    with Held(user, *flags) as pids:
        argv = ["strace", "-f", "-e", "trace=poll,ppoll", "-p", str(pids["supervisor"])]
        tracer = subprocess.Popen(argv, stderr=subprocess.PIPE)
        try:
            assert b"attached" in tracer.stderr.readline()
            select.select([], [], [], LOOK / 1000)
        finally:
            tracer.send_signal(signal.SIGINT)
            lines = tracer.communicate(timeout=PATIENCE)[1].splitlines()
    # strace also shows the calls that it interrupts itself when it attaches and detaches. Their
    # lines contain "restart", and do not count.
    return sum(b"poll(" in line and b"restart" not in line for line in lines)


@pytest.mark.rig("strace")
@pytest.mark.parametrize("user", ["root"], indirect=True)
def test_the_supervisor_does_not_poll_unless_it_samples_a_limit(user):
    if "sampling" in mechanisms(user, LIMIT):
        assert traced_polls(user, *LIMIT) >= 5
    assert traced_polls(user) <= 1


def test_a_supervisor_that_paused_its_target_still_reacts_to_signals(user, run):
    """Use a CPU share so small that corral pauses the target nearly all the time. SIGTERM to corral
    must still reach the target.
    """
    argv = user.corral_argv("run", "--max-cpu", "10", "--", user.python, "-c", "while True: pass")
    process = user.popen(argv, stderr=subprocess.PIPE)
    try:
        assert not ended(process.pid, 1.5)
        process.send_signal(signal.SIGTERM)
    finally:
        process.communicate(timeout=PATIENCE)
    # The exit code shows that SIGTERM ended the target, and not SIGKILL after the grace period.
    assert process.returncode == 128 + signal.SIGTERM


bare = pytest.mark.parametrize("tier", ["bare"], indirect=True)


@bare
@pytest.mark.parametrize("kind", ["private", "memfd"])
def test_memory_counts_without_namespaces(run, kind, tier):
    over = run(hog(kind) + STAY, "600", flags=(*LIMIT, *LATEST))
    assert (over.kind, over.code, over.hit) == ("memory", 137, ["memory"]), over.err
    below = run(hog(kind) + WAIT, "100", flags=LIMIT)
    assert (below.kind, below.code, below.hit) == ("exited", 0, []), below.err


@bare
def test_the_hosts_shared_memory_does_not_count(run, tier):
    """Put memory into the host's /dev/shm. A target without a private root can see this memory, but
    samples of the run must not count it.
    """
    path = pathlib.Path(f"/dev/shm/corral-tests-{os.getpid()}")
    path.write_bytes(bytes(300 * MIB))
    try:
        done = run(WAIT, flags=LIMIT)
    finally:
        path.unlink()
    assert (done.kind, done.code, done.out) == ("exited", 0, "held\n"), done.err
    assert done.usage["memory"] < 128 * MIB


FORKS = """
for number in range(int(sys.argv[1])):
    if os.fork() == 0:
        signal.pause()
"""


@bare
def test_processes_are_counted_without_namespaces(user, run, tier):
    """Start too many processes in a run whose limit neither a cgroup nor RLIMIT_NPROC can enforce.
    The supervisor must refuse the first process beyond the limit.
    """
    traces = Traces()
    flags = ("--allow-subprocess", "--max-pids", "16", *LATEST)
    over = run(FORKS + STAY, "40", traces.argument, flags=flags)
    assert (over.kind, over.code, over.hit) == ("exited", 1, ["pids"]), over.err
    assert "BlockingIOError" in over.err
    assert traces.left() == {}
    below = run(FORKS + WAIT, "10", traces.argument, flags=flags)
    assert (below.kind, below.code, below.hit) == ("exited", 0, []), below.err
    assert traces.left() == {}


@bare
def test_a_fork_bomb_ends_without_namespaces(user, run, tier):
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
first = os.getpid()
for _ in range(9):
    try:
        os.fork()
    except BlockingIOError:
        if os.getpid() == first:
            sys.exit()
signal.pause()
"""
    traces = Traces()
    flags = ("--allow-subprocess", "--max-pids", "16", *LATEST)
    done = run(code, traces.argument, flags=flags)
    assert (done.kind, done.code, done.hit) == ("exited", 0, ["pids"]), done.err
    assert traces.left() == {}


@bare
def test_cpu_time_is_added_up_without_namespaces(run, tier):
    flags = ("--allow-subprocess", "--max-cpu-time", "1s", *LATEST)
    done = run(SPIN, "4", flags=flags)
    assert (done.kind, done.code, done.hit) == ("cpu_time", 137, ["cpu_time"]), done.err
    # If corral applied the limit to each process, the four would use 4000 ms before it acts.
    assert 1000 <= done.usage["cpu_ms"] < 4000


# This program hides memory: a cgroup counts it, but sampling cannot see it. This is why corral
# reports a sampled limit as `cooperative`.
UNSEEN = """
import ctypes
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
kept.append(os.memfd_create('hog'))
for _ in range(400):
    os.write(kept[0], b'x' * MIB)
"""


def test_a_memfd_of_an_unreadable_process_counts(request, ordinary):
    if "sampling" in mechanisms(ordinary, LIMIT):
        request.applymarker(pytest.mark.xfail(reason="only a cgroup can count it", strict=True))
    done = ordinary.run(ordinary.python, "-ISc", PRELUDE + UNSEEN + WAIT, flags=LIMIT)
    assert done.returncode == 137


# These programs allocate memory that the files of their first thread in /proc do not show. Each
# allocates as many MiB as its argument says.
HIDDEN = {
    "a shared mapping, dropped from the tables": """
for _ in range(size // PIECE):
    kept.append(mmap.mmap(-1, PIECE))
    kept[-1].write(ONES)
    kept[-1].madvise(mmap.MADV_DONTNEED)
""",
    "a memfd that is mapped, not touched and closed": """
for _ in range(size // PIECE):
    fd = os.memfd_create('hog')
    os.write(fd, ONES)
    libc.mmap(None, PIECE, 3, 1, fd, 0)
    os.close(fd)
""",
    "a memfd in the table of a thread": """
import threading
done = threading.Event()
def hide():
    assert libc.close_range(1000, 1000, 2) == 0  # CLOSE_RANGE_UNSHARE
    fd = os.memfd_create('hog')
    for _ in range(size // MIB):
        os.write(fd, bytes([1]) * MIB)
    done.set()
    threading.Event().wait()
threading.Thread(target=hide, daemon=True).start()
done.wait()
""",
    "memory of a process whose first thread has ended": """
import threading
first = threading.get_native_id()
def stay():
    kept.append(bytearray(b'x' * size))
    print('took it', flush=True)
    signal.pause() if len(sys.argv) < 3 else select.select([], [], [], 0.5)
    libc.syscall(231, 0)
thread = threading.Thread(target=stay)
thread.start()
libc.syscall(60, 0)
""",
    "a memfd in flight": """
import socket
ours, theirs = socket.socketpair()
for _ in range(size // PIECE):
    fd = os.memfd_create('hog')
    os.write(fd, ONES)
    socket.send_fds(ours, [b'x'], [fd])
    os.close(fd)
""",
}
ROOT_SEES = (
    "a shared mapping, dropped from the tables",
    "a memfd that is mapped, not touched and closed",
)
HIDE = """
import ctypes, select
libc = ctypes.CDLL(None)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
size, PIECE = int(sys.argv[1]) * MIB, 4 * MIB
ONES = bytes([1]) * PIECE
"""


@pytest.mark.parametrize("act", HIDDEN)
def test_memory_that_a_target_hides_from_the_supervisor_counts(request, user, run, act):
    """Hide memory from the supervisor in several ways. Without a cgroup, the test is expected to
    fail for the ways that sampling cannot detect.
    """
    blind = act == "a memfd in flight" or (user.uid and act in ROOT_SEES)
    if blind and "sampling" in mechanisms(user, LIMIT):
        request.applymarker(pytest.mark.xfail(reason="only a cgroup can count it", strict=True))
    stay = (
        ""
        if "first thread" in act
        else "print('took it', flush=True)\n" + (WAIT if blind else STAY)
    )
    over = run(HIDE + HIDDEN[act] + stay, "600", flags=(*LIMIT, *LATEST))
    assert (over.kind, over.code, over.hit) == ("memory", 137, ["memory"]), over.err


@pytest.mark.parametrize("act", HIDDEN)
def test_memory_hidden_from_the_supervisor_below_the_limit_does_not_end_the_run(run, act):
    done = run(HIDE + HIDDEN[act] + WAIT, "20", "below", flags=LIMIT)
    assert (done.kind, done.code, done.hit) == ("exited", 0, []), done.err


BUFFERS = """
import socket
total = 0
while total < int(sys.argv[1]) * MIB:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    kept.append((ours, theirs))
    try:
        while True:
            total += ours.send(bytes(1 << 16))
    except BlockingIOError:
        pass
print('took it')
"""


def test_memory_in_socket_buffers_is_not_counted_by_sampling(user, run):
    flags = ("--max-memory", "32M")
    done = run(BUFFERS + WAIT, "40", flags=flags)
    if "sampling" in mechanisms(user, flags):
        assert (done.kind, done.out) == ("exited", "took it\nheld\n"), done.err
    else:
        assert done.kind == "memory"
    taken = run(hog("private") + STAY, "40", flags=(*flags, *LATEST))
    assert (taken.kind, taken.hit) == ("memory", ["memory"])


def test_explain_names_the_kinds_of_memory_that_sampling_does_not_count(user):
    told = user.corral("explain", "--json", *LIMIT, "--", "/bin/true")
    held = {row["control"]: row for row in json.loads(told.stdout)["controls"]}["memory"]
    is_sampled = held["mechanism"] == "sampling"
    for blind in ("memfds in transit through a socket", "socket buffers", "PR_SET_DUMPABLE"):
        assert (blind in held["why"].partition("not counted: ")[2]) == is_sampled


MAPPINGS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
PAGE = os.sysconf('SC_PAGE_SIZE')
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
def scatter(count):
    start = libc.mmap(None, count * PAGE, 3, 0x22, -1, 0)
    for number in range(0, count, 2):
        assert libc.mprotect(ctypes.c_void_p(start + number * PAGE), PAGE, 1) == 0
"""
MANY_MAPPINGS = 30_000


def test_processes_with_very_many_memory_mappings_do_not_delay_the_timeout(run):
    """Make two processes share 100 MiB under a limit of 150 MiB. Only an exact sample, which reads
    all their mappings, shows that they stay below the limit. Reading very many mappings takes long,
    but the timeout must still end the run.
    """
    code = f"""
kept = [bytearray(b'x' * MIB) for _ in range(100)]
child = os.fork()
scatter({MANY_MAPPINGS})
print('scattered', flush=True)
signal.pause()
"""
    flags = ("--allow-subprocess", "--max-memory", "150M")
    done = run_until_said(run, "scattered\n" * 2, MAPPINGS + code, flags=flags)
    assert (done.kind, done.code, done.hit) == ("timeout", 124, ["timeout"]), done.err
    assert done.out == "scattered\n" * 2
    assert done.usage["memory"] < 150 * MIB


@pytest.fixture
def scattered():
    """Start a process with two children that have many mappings, and yield the pid of the first
    process.
    """
    code = f"""
for _ in range(2):
    if os.fork() == 0:
        scatter({MANY_MAPPINGS})
        print('scattered', flush=True)
        signal.pause()
signal.pause()
"""
    argv = [sys.executable, "-ISc", PRELUDE + MAPPINGS + code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert [process.stdout.readline() for _ in range(2)] == [b"scattered\n"] * 2
        yield process.pid
        os.killpg(process.pid, signal.SIGKILL)


def bytes_read() -> int:
    with open("/proc/self/io") as file:
        return int(file.readline().removeprefix("rchar:"))


def look(pid: int, answers: list[bool]) -> int:
    """Take one exact sample of the descendants of `pid`, and return how many bytes it read from
    /proc. The sample asks again and again whether to stop. It gets the `answers`, one by one, and
    then False.
    """
    before = bytes_read()
    usage.measure(pid, exact=True, interrupted=lambda: answers.pop(0) if answers else False)
    return bytes_read() - before


def test_one_sample_reads_only_a_limited_number_of_memory_mappings(scattered, monkeypatch):
    bounded = look(scattered, [])
    assert bounded < usage.MAX_MAP_BYTES + (4 << 20)
    monkeypatch.setattr(usage, "MAX_MAP_BYTES", 1 << 30)
    whole = look(scattered, [])  # Sanity check: an unlimited sample reads more
    assert whole > 2 * bounded


def test_an_interrupted_sample_does_not_read_further_processes(scattered, monkeypatch):
    monkeypatch.setattr(usage, "MAX_MAP_BYTES", 1 << 30)
    whole = look(scattered, [])
    assert look(scattered, [True] * 10) < 1 << 20
    # For each of the two children, the sample asks twice whether to stop: before it lists the
    # child's files, and before it reads the child's memory. The fourth answer, True, stops it
    # before it reads the memory of the second child.
    one = look(scattered, [False, False, False, True])
    assert whole / 4 < one < whole * 3 / 4


# These programs make System V objects, which do not belong to a process. Each program allocates as
# many MiB as its argument says.
OBJECTS = {
    "segments that no process has attached": """
for _ in range(int(sys.argv[1]) // 10):
    at = libc.shmat(libc.shmget(0, 10 * MIB, 0o1600), None, 0)
    ctypes.memset(at, 1, 10 * MIB)
    libc.shmdt(at)
""",
    "segments that are attached by who never touched them": """
for _ in range(int(sys.argv[1]) // 10):
    segment = libc.shmget(0, 10 * MIB, 0o1600)
    libc.shmat(segment, None, 0)
    at = libc.shmat(segment, None, 0)
    ctypes.memset(at, 1, 10 * MIB)
    libc.shmdt(at)
""",
    "segments in use": """
for _ in range(int(sys.argv[1]) // 10):
    ctypes.memset(libc.shmat(libc.shmget(0, 10 * MIB, 0o1600), None, 0), 1, 10 * MIB)
""",
    "messages without a word": """
for _ in range(int(sys.argv[1])):
    queue, message = libc.msgget(0, 0o1600), ctypes.c_long(1)
    while libc.msgsnd(queue, ctypes.byref(message), 0, 0o4000) == 0: pass
""",
    "semaphores": """
for _ in range(int(sys.argv[1])):
    libc.semget(0, 16000, 0o1600)
""",
}
SYSV = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
libc.shmdt.argtypes = [ctypes.c_void_p]
"""


@pytest.mark.parametrize("act", OBJECTS)
def test_system_v_objects_count_as_memory(run, act):
    flags = ("--max-memory", "40M")
    over = run(SYSV + OBJECTS[act] + STAY, "60", flags=(*flags, *LATEST))
    assert (over.kind, over.code, over.hit) == ("memory", 137, ["memory"]), over.err
    below = run(SYSV + OBJECTS[act] + WAIT, "10", flags=flags)
    assert (below.kind, below.code, below.hit) == ("exited", 0, []), below.err
