"""Test how resource usage is read from kernel files and from real processes."""

from __future__ import annotations

import os
import pathlib
import select
import signal
import subprocess
import sys

import pytest

import corral
from corral.plan.model import Sample
from corral.platforms import deadlines
from corral.platforms.linux import usage
from corral.platforms.sampling import Sampler

ROLLUP = b"""5583-7ffe ---p 00000000 00:00 0 [rollup]
Rss:               20000 kB
Pss:               12000 kB
Pss_Anon:           7000 kB
Pss_File:           4000 kB
Pss_Shmem:          1000 kB
Anonymous:          8000 kB
"""
SMAPS = b"""55e9-55ea r--p 00000000 fe:00 260386                     /usr/bin/head
Pss:                   8 kB
Anonymous:             0 kB
7f00-7f01 rw-s 00000000 00:01 42                         /memfd:known (deleted)
Pss:                 100 kB
Anonymous:             0 kB
7f01-7f02 rw-p 00000000 00:01 42                         /memfd:known (deleted)
Pss:                  50 kB
Anonymous:            30 kB
7f02-7f03 rw-s 00000000 00:01 43                         /memfd:closed (deleted)
Pss:                 900 kB
Anonymous:             0 kB
a000-b000 rw-s 00000000 00:2a 7                          /tmp/a file
Pss:                  16 kB
Anonymous:             0 kB
a000-b000 rw-s 00000000 00:01 3                          /SYSV00000000 (deleted)
Pss:                  64 kB
Anonymous:             0 kB
a000-b000 rw-s 00000000 00:01 44                         /memfd:x /SYSV00000000 (deleted)
Pss:                2000 kB
Anonymous:             0 kB
c000-d000 rw-p 00000000 00:00 0
Pss:                 777 kB
Anonymous:           777 kB
VmFlags: rd wr mr mw me ac
"""
MEMFD = {(os.makedev(0, 1) if hasattr(os, "makedev") else 1, 42): 1 << 20}
COUNTED = [({}, -1, 0), (MEMFD, -1, 120), ({}, 0x2A, 16), (MEMFD, 0x2A, 136)]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs a Linux kernel")


def test_rows_of_smaps_rollup_are_added_up_and_converted_to_bytes():
    assert usage.kilobytes(ROLLUP.splitlines(), (b"Pss_Anon:", b"Pss_Shmem:")) == 8000 << 10
    assert usage.kilobytes([], (b"Pss_Anon:",)) == 0


@LINUX
@pytest.mark.parametrize(("memfds", "device", "kilobytes"), COUNTED)
def test_segments_counted_as_objects_are_not_counted_as_mappings(memfds, device, kilobytes):
    """Check that mappings of System V segments of shared memory do not count, because each segment
    is already counted by itself. The mapping of a memfd must count, even if the memfd is named like
    a segment.
    """
    found = usage.counted_elsewhere(SMAPS.splitlines(), memfds, device, segments=True)
    assert found == (kilobytes + 64) << 10


@LINUX
@pytest.mark.parametrize(("memfds", "device", "kilobytes"), COUNTED)
def test_memory_counted_as_a_file_is_not_counted_as_a_mapping(memfds, device, kilobytes):
    """Check that the pages of a file in memory are left out when its mappings are counted, because
    the file is counted by itself. Two kinds of pages must count: pages that the process has changed
    privately, and pages of a memfd without an open descriptor.
    """
    assert usage.counted_elsewhere(SMAPS.splitlines(), memfds, device) == kilobytes << 10


CHILD = """
import mmap, os, sys
{act}
print("ready", flush=True)
sys.stdin.read()
"""


class Child:
    def __init__(self, act):
        argv = [sys.executable, "-ISc", CHILD.format(act=act)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        assert self.process.stdout.readline() == b"ready\n"
        return self.process.pid

    def __exit__(self, *_):
        self.process.communicate()


MIB = 1 << 20
NESTED = """
if os.fork() == 0:
    {act}
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
os._exit(0)
"""


@LINUX
@pytest.mark.parametrize("exact", [False, True], ids=["cheap", "exact"])
@pytest.mark.parametrize(
    "act",
    [
        "kept = bytearray(b'x' * (32 << 20))",
        "kept = mmap.mmap(-1, 32 << 20); kept.write(b'x' * (32 << 20))",
        "kept = os.memfd_create('x'); os.write(kept, b'x' * (32 << 20))",
    ],
    ids=["private", "shared", "memfd"],
)
def test_memory_of_a_grandchild_is_counted(act, exact):
    with Child(NESTED.format(act="pass")) as pid:
        before = usage.measure(pid, exact=exact)
    with Child(NESTED.format(act=act)) as pid:
        after = usage.measure(pid, exact=exact)
        assert len(usage.tree(pid)) == 1
    assert before.tasks == after.tasks == 1
    # A cheap sample may count a shared page twice: in the process's memory and in the file's.
    most = 40 if exact or "mmap" not in act else 72
    assert 31 * MIB < after.memory - before.memory < most * MIB


@LINUX
def test_an_exact_sample_counts_mapped_and_written_pages_once():
    act = "fd = os.memfd_create('x'); os.truncate(fd, 32 << 20); kept = mmap.mmap(fd, 32 << 20); kept.write(b'x' * (32 << 20))"
    with Child(NESTED.format(act=act)) as pid:
        cheap, exact = usage.measure(pid), usage.measure(pid, exact=True)
    assert cheap.memory > 64 * MIB
    assert 32 * MIB <= exact.memory < 48 * MIB


# In this program, five processes share the same pages. The first process waits until the others
# have started.
SHARING = """
kept = bytearray(b'x' * (32 << 20))
hold, ending = os.pipe()
ready, tell = os.pipe()
for _ in range(5):
    if os.fork() == 0:
        os.close(ending)
        os.write(tell, b'.')
        os.read(hold, 1)
        os._exit(0)
for _ in range(5):
    os.read(ready, 1)
del kept
"""


@LINUX
def test_an_exact_sample_counts_shared_pages_once():
    with Child(SHARING) as pid:
        cheap, exact = usage.measure(pid), usage.measure(pid, exact=True)
    assert cheap.tasks == exact.tasks == 5
    assert cheap.memory > 5 * 32 * MIB
    assert 32 * MIB <= exact.memory < 64 * MIB


# In this program, twenty processes share the pages of a child of init. The test kills these twenty
# processes.
ENDING = """
import signal
ready, tell = os.pipe()
if os.fork() == 0:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    kept = bytearray(b'x' * (32 << 20))
    for _ in range(20):
        if os.fork() == 0:
            os.write(tell, b'.')
            signal.pause()
    signal.pause()
for _ in range(20):
    os.read(ready, 1)
"""


class Tree:
    """A real process tree that shrinks during an exact measurement. The measurement asks `end_one`
    again and again whether to stop. The answer is always no, but later calls also kill a process.
    """

    def __init__(self, root):
        self.root = root
        self.first, *self.sharing = usage.tree(root)
        self.is_exact = self.was_killed = False
        self.questions = 0

    def measure(self, *, exact=False, interrupted=lambda: False):
        self.is_exact, self.questions = exact, 0
        return usage.measure(self.root, exact=exact, interrupted=interrupted)

    def end_one(self):
        """Kill one process per call, but only after 23 calls, because by then the measurement has
        read all processes once.
        """
        self.questions += 1
        if self.is_exact and self.questions > 23 and self.sharing:
            end_process(self.sharing.pop(0))
        return False

    def kill(self):
        self.was_killed = True


def end_process(pid):
    fd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([fd], [], [])
    os.close(fd)


@LINUX
@pytest.mark.parametrize(("limit", "hit"), [(64, ""), (24, "memory")])
def test_memory_counts_once_if_processes_that_share_it_end(limit, hit):
    with Child(ENDING) as pid:
        child = Tree(pid)
        try:
            watched = deadlines.Deadlines(child, timeout=None, sample=Sample(memory=limit * MIB))
            watched.sample_if_due(child.end_one)
            assert len(child.sharing) < 3
            assert (watched.reason, child.was_killed) == (hit, bool(hit))
        finally:
            for one in usage.tree(pid):
                os.kill(one, signal.SIGKILL)


# In this program, a child of init shares its pages with ten processes, and starts ten more when it
# gets a signal.
REPLACING = """
import signal
ready, tell = os.pipe()
def start(*_):
    for _ in range(10):
        if os.fork() == 0:
            os.write(tell, b'.')
            signal.pause()
if os.fork() == 0:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, start)
    kept = bytearray(b'x' * (32 << 20))
    start()
    while True:
        signal.pause()
for _ in range(10):
    os.read(ready, 1)
"""


# In this program, init has two children. Each of them shares 32 MiB with ten processes, and starts
# ten more when it gets a signal. Init waits until the first twenty processes have started.
HIDING = """
import signal
ready, tell = os.pipe()
def start(*_):
    for _ in range(10):
        if os.fork() == 0:
            os.write(tell, b'.')
            signal.pause()
for _ in range(2):
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, start)
        kept = bytearray(b'x' * (32 << 20))
        start()
        while True:
            signal.pause()
for _ in range(20):
    os.read(ready, 1)
"""


class HidingTree:
    """A process tree that replaces the processes of HIDING during each exact measurement, unless
    the tree is paused.
    """

    def __init__(self, pid):
        self.root, self.was_killed, self.signals = pid, False, []
        self.holders = [one for one in usage.tree(pid) if read_parent(one) == pid]
        self.found, self.questions = [], 0

    def measure(self, *, exact=False, interrupted=lambda: False):
        self.found, self.questions = usage.tree(self.root) if exact else [], 0
        return usage.measure(self.root, exact=exact, interrupted=interrupted)

    def replace(self):
        """Replace the processes during a measurement: after it has listed them all, but before it
        reads their memory.
        """
        self.questions += 1
        if self.found and self.questions == 1 + len(self.found):
            for one in self.holders:
                os.kill(one, signal.SIGUSR1)
            for _ in range(50):
                if len(usage.tree(self.root)) >= len(self.found) + 20:
                    for one in set(self.found) - set(self.holders):
                        end_process(one)
                    break
                select.select([], [], [], 0.01)
        return False

    def signal(self, number):
        self.signals.append(number)
        for one in usage.tree(self.root):
            os.kill(one, number)

    def kill(self):
        self.was_killed = True


def read_parent(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b") ")[2].split()[1])


@LINUX
@pytest.mark.parametrize(("limit", "hit"), [(48, "memory"), (200, "")])
def test_a_tree_that_replaces_its_processes_is_measured_while_it_is_stopped(limit, hit):
    """Measure two groups of processes with 32 MiB each. A limit of 48 MiB is exceeded, but only by
    both groups together. A limit of 200 MiB is not exceeded.
    """
    with Child(HIDING) as pid:
        child = HidingTree(pid)
        assert len(child.holders) == 2
        try:
            watched = deadlines.Deadlines(child, timeout=None, sample=Sample(memory=limit * MIB))
            watched.sample_if_due(child.replace)
            assert (watched.reason, child.was_killed) == (hit, bool(hit))
            assert child.signals == [signal.SIGSTOP, signal.SIGCONT]
        finally:
            # Stop the tree, so that no process can start after the tree is listed.
            child.signal(signal.SIGSTOP)
            select.select([], [], [], 0.1)
            for one in usage.tree(pid):
                os.kill(one, signal.SIGKILL)


@LINUX
def test_memory_shared_with_processes_that_were_not_found_counts_in_full():
    """Replace all processes except one after the measurement has listed them and before it reads
    their memory. The remaining process shares 32 MiB with ten new processes, which are not on the
    list. The whole 32 MiB must count.
    """
    with Child(REPLACING) as pid:
        first, *others = usage.tree(pid)
        questions = []

        def replace():
            questions.append(0)
            if len(questions) == 12:
                os.kill(first, signal.SIGUSR1)
                while len(usage.tree(pid)) < 21:
                    select.select([], [], [], 0.01)
                for one in others:
                    end_process(one)
            return False

        try:
            seen = usage.measure(pid, exact=True, interrupted=replace)
            assert seen.memory < 32 * MIB < seen.certain
            assert Sampler(Sample(memory=24 * MIB)).check(seen) == "memory"
            # Sanity check: a limit of 64 MiB does not end the run, because no page counts twice.
            assert Sampler(Sample(memory=64 * MIB)).check(seen) is None
        finally:
            for one in usage.tree(pid):
                os.kill(one, signal.SIGKILL)


THREADS = """
if os.fork() == 0:
    import threading
    for _ in range(5):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
os._exit(0)
"""


@LINUX
def test_threads_count_as_tasks():
    with Child(THREADS) as pid:
        assert usage.measure(pid).tasks == 6
    with Child(THREADS.replace("range(5)", "range(0)")) as pid:
        assert usage.measure(pid).tasks == 1


SPIN = "import time\nwhile time.process_time() < 0.3: pass\n"
REAPED = "if os.fork() == 0:\n    import time\n    while time.process_time() < 0.3: pass\n    os._exit(0)\nos.wait()"


@LINUX
def test_cpu_time_of_reaped_children_counts_and_that_of_the_root_does_not():
    with Child(SPIN) as pid:
        assert usage.measure(pid).cpu == 0.0
    with Child(REAPED) as pid:
        assert usage.measure(pid).cpu >= 0.25


@LINUX
def test_an_ended_process_uses_nothing():
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    assert usage.measure(process.pid) == usage.Usage(cpu=0.0, memory=0, tasks=0)


@LINUX
def test_brackets_in_a_process_name_do_not_confuse_the_parser():
    rename = "import ctypes\nctypes.CDLL(None).prctl(15, b') R 1 (x) 9 9', 0, 0, 0)"
    nested = NESTED.format(act=rename.replace("\n", "; "))
    with Child(nested) as pid:
        assert usage.measure(pid).tasks == 1


BLIND = """
import os, resource, sys
sys.path.insert(0, sys.argv[1])
from corral.platforms.linux import usage
child = os.fork()
if child == 0:
    space = bytearray(b"x" * (8 << 20))
    os.read(0, 1)
    os._exit(0)
print(usage.measure(os.getpid()).tasks)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
for look in (lambda: usage.measure(os.getpid()), lambda: usage._open_memfds(child, usage.Budget()), lambda: usage._resident(child)):
    try:
        print(look())
    except OSError as error:
        print(error.strerror)
"""


def test_without_descriptors_usage_is_an_error():
    source = os.path.dirname(os.path.dirname(corral.__file__))
    argv = [sys.executable, "-c", BLIND, source]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as looking:
        out, _ = looking.communicate("")
    assert out.splitlines() == ["1", *["Too many open files"] * 3]


@LINUX
def test_an_interrupted_sample_still_has_the_cpu_time():
    with Child(REAPED) as pid:
        seen = usage.measure(pid, interrupted=lambda: True)
    assert seen.cpu >= 0.25
    assert seen.memory == 0


MANY_MAPS = """
if os.fork() == 0:
    fd = os.memfd_create('x')
    os.truncate(fd, 32 << 20)
    kept = mmap.mmap(fd, 32 << 20)
    kept.write(b'x' * (32 << 20))
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
os._exit(0)
"""


@LINUX
def test_shared_pages_in_mappings_beyond_the_limit_count_twice(monkeypatch):
    """Give a process more mappings than a measurement may read. If shared memory is in an unread
    mapping, the result must be too high rather than too low.
    """
    with Child(MANY_MAPS) as pid:
        exact = usage.measure(pid, exact=True)
        monkeypatch.setattr(usage, "MAX_MAP_BYTES", 100)
        bounded = usage.measure(pid, exact=True)
    assert bounded.memory - exact.memory >= 30 * MIB


@LINUX
def test_descriptors_beyond_the_limit_are_not_read(monkeypatch):
    act = "kept = [os.memfd_create('x') for _ in range(20)]; os.write(kept[-1], b'x' * (32 << 20))"
    with Child(NESTED.format(act=act)) as pid:
        assert usage.measure(pid).memory > 32 * MIB
        monkeypatch.setattr(usage, "MAX_DESCRIPTORS", 3)
        assert usage.measure(pid).memory < 32 * MIB


ORPHAN = """
import ctypes
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
parent = os.fork()
if parent == 0:
    if os.fork() == 0:
        os.read(0, 1)
        os._exit(0)
    os.read(0, 1)
    os._exit(0)
"""


@LINUX
def test_an_orphan_that_gets_a_new_parent_during_the_search_for_processes_is_found(monkeypatch):
    """Kill the orphan's parent while the search reads the lists of children: after the root's list,
    but before the parent's list. The orphan then becomes a child of the root, whose list was
    already read.
    """
    read = usage._children
    with Child(ORPHAN) as root:
        (parent,) = read(root)
        while not (orphan := read(parent)):
            pass
        ended = []

        def children(pid):
            found = read(pid)
            if pid == root and not ended:
                ended.append(parent)
                os.kill(parent, 9)
                while orphan[0] not in read(root):
                    pass
            return found

        monkeypatch.setattr(usage, "_children", children)
        assert orphan[0] in usage.tree(root)
        os.kill(orphan[0], 9)


@LINUX
def test_the_search_for_processes_ends_however_fast_they_start_and_end(monkeypatch):
    """Add a new child each time the root's list of children is read. This looks as if processes
    started and ended all the time.
    """
    numbers = iter(range(1 << 30, 1 << 31))
    monkeypatch.setattr(usage, "_children", lambda pid: [next(numbers)] if pid == 1 else [])
    assert len(usage.tree(1)) == usage.MAX_READS_OF_ROOT


@LINUX
def test_the_mappings_of_a_process_are_read_once_for_all_its_threads():
    if os.geteuid():
        pytest.skip("only root may look at mapped files")
    budget = usage.Budget()
    with Child(THREADS) as pid:
        [threaded] = usage.tree(pid)
        size = len(pathlib.Path(f"/proc/{threaded}/maps").read_bytes())
        usage._mapped_files(threaded, budget)
    read = usage.MAX_MAP_BYTES - budget.map_bytes
    assert size // 2 < read < size * 2, (size, read)


MOVES = """
import signal, threading
def work():
    if os.fork() == 0:
        signal.pause()
    print("ready", flush=True)
    os.read(0, 1)
thread = threading.Thread(target=work)
thread.start()
thread.join()
signal.pause()
"""


@LINUX
def test_a_child_of_a_thread_that_ends_during_the_search_for_processes_is_found(monkeypatch):
    """After the search has read the first thread's list of children, end another thread that has a
    child. The child then moves to the first thread's list, which was already read.
    """
    read, started = usage.abi.read_file, Child(MOVES)
    with started.process, started as pid:
        [_, thread] = usage._threads(pid)
        [child] = usage._children(pid)

        def read_late(path):
            if path == f"/proc/{pid}/task/{thread}/children" and os.path.exists(path):
                started.process.stdin.write(b"x")
                started.process.stdin.flush()
                while os.path.exists(path):
                    pass
            return read(path)

        monkeypatch.setattr(usage.abi, "read_file", read_late)
        try:
            assert usage._children(pid) == [child]
            assert usage._threads(pid) == [pid]  # make sure that the thread has ended
        finally:
            os.kill(child, 9)
            os.kill(pid, 9)


@LINUX
def test_the_search_reads_each_list_of_threads_once_however_fast_threads_start_and_end(monkeypatch):
    """Let a thread end just before its list of children is read. Only the first thread's list may
    be read twice.
    """
    read, reads = usage.abi.read_file, []
    with Child(THREADS) as root:
        [pid] = usage.tree(root)
        threads = usage._threads(pid)
        assert len(threads) == 6

        def read_and_count(path):
            reads.append(path)
            if path == f"/proc/{pid}/task/{threads[-1]}/children":
                raise FileNotFoundError(2, "ended", path)
            return read(path)

        monkeypatch.setattr(usage.abi, "read_file", read_and_count)
        usage._children(pid)
    assert len([path for path in reads if path.endswith("/children")]) == len(threads) + 1


@LINUX
def test_no_list_of_descriptors_is_read_beyond_the_budget(monkeypatch):
    """Imitate threads that each have their own descriptor table. A target can make many of them, so
    the measurement may read only a limited number of tables.
    """
    listed, look = [], os.listdir
    monkeypatch.setattr(usage, "_shares_files", lambda *_: False)
    with Child(THREADS) as root:
        [pid] = usage.tree(root)
        monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or look(path))
        usage._open_memfds(pid, usage.Budget())
        whole = len([path for path in listed if path.endswith("/fd")])
        listed.clear()
        monkeypatch.setattr(usage, "MAX_DESCRIPTORS", 1)
        usage._open_memfds(pid, usage.Budget())
        bounded = len([path for path in listed if path.endswith("/fd")])
    assert (whole, bounded) == (6, 1)


PROBED = """
from corral.platforms.linux.probes import processes
inherited = b"x" * (100 << 20)
print(processes.measure_grandchild.attempt())
"""


@LINUX
def test_the_first_measurement_of_the_probe_includes_only_the_grandchild():
    """Check that the probe measures only the grandchild. Each forked process inherits 100 MiB, so
    the measured memory shows how many processes were counted.
    """
    source = str(pathlib.Path(corral.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROBED],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    start, _, rest = done.stdout.partition("(")
    assert start == "corral measures 32 MiB of a grandchild "
    assert 100 <= int(rest.split()[0]) < 132
