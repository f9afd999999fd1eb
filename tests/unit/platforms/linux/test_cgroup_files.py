"""Test the functions of the cgroup mechanism that only read and return text."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.plan.model import Held
from corral.platforms.contract import Reaped
from corral.platforms.linux.mechanisms import cgroup
from corral.platforms.linux.mechanisms.cgroup import Base, Cgroup, Enter, Leaf
from corral.policy.model import Limits

UNIFIED = b"30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = (
    b"31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    b"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    b"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
V1 = b"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


PATHS = pytest.mark.skipif(sys.platform == "win32", reason="uses Linux paths")


@PATHS
@pytest.mark.parametrize(
    ("mountinfo", "membership", "expected"),
    [
        (UNIFIED, b"0::/user.slice/a\n", ("/sys/fs/cgroup", "/sys/fs/cgroup/user.slice/a")),
        (UNIFIED, b"0::/\n", ("/sys/fs/cgroup", "/sys/fs/cgroup")),
        (
            HYBRID,
            b"4:memory:/x\n1:name=systemd:/y\n0::/z\n",
            ("/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/z"),
        ),
        # Only cgroup v1 is mounted, so the v1 lines in /proc/self/cgroup are ignored.
        (V1, b"4:memory:/x\n", None),
        (b"", b"0::/x\n", None),
        # These two processes are in containers that see only the cgroup /docker/abc. The second
        # process was moved out of that cgroup.
        (
            UNIFIED.replace(b" / /sys", b" /docker/abc /sys"),
            b"0::/docker/abc/init\n",
            ("/sys/fs/cgroup", "/sys/fs/cgroup/init"),
        ),
        (
            UNIFIED.replace(b" / /sys", b" /docker/abc /sys"),
            b"0::/docker/abcdef\n",
            ("/sys/fs/cgroup", "/sys/fs/cgroup"),
        ),
        # The process's cgroup is outside its cgroup namespace, so the path starts with `..`.
        (UNIFIED, b"0::/../other\n", ("/sys/fs/cgroup", "/sys/fs/cgroup/other")),
        # The first mount shows another cgroup, so the second mount must be chosen.
        (
            UNIFIED.replace(b" / /sys/fs/cgroup", b" /a /mnt/part") + UNIFIED,
            b"0::/b\n",
            ("/sys/fs/cgroup", "/sys/fs/cgroup/b"),
        ),
        # mountinfo escapes spaces and backslashes in names, but /proc/self/cgroup does not.
        (
            UNIFIED.replace(b"/sys/fs/cgroup", b"/odd\\040place\\134"),
            b"0::/my group\n",
            ("/odd place\\", "/odd place\\/my group"),
        ),
        # The mount point contains the word cgroup2, but the file system has another type.
        (b"30 24 0:26 / /a-cgroup2-b rw - ext4 /dev/sda rw\n", b"0::/\n", None),
    ],
)
def test_the_hierarchy_is_found_wherever_it_is_mounted(mountinfo, membership, expected):
    assert cgroup.locate(mountinfo, membership) == expected


@PATHS
@given(st.lists(st.text("abc./-", max_size=6), max_size=5))
def test_the_processs_own_directory_is_never_outside_the_mount(parts):
    membership = ("0::/" + "/".join(parts) + "\n").encode()
    point, here = cgroup.locate(UNIFIED, membership)
    assert here == point or here.startswith(f"{point}/")


LIMITS = Limits(memory=64 << 20, cpu=1500, pids=20, io=1 << 20)
EVERYTHING = (
    ("memory.max", "67108864"),
    ("memory.swap.max", "0"),
    ("memory.oom.group", "1"),
    ("pids.max", "21"),
    ("cpu.max", "150000 100000"),
    ("io.max", "8:0 rbps=1048576 wbps=1048576"),
    ("io.max", "259:1 rbps=1048576 wbps=1048576"),
)


def test_every_limit_is_written_to_its_cgroup_file():
    assert cgroup.settings(LIMITS, cgroup.CONTROLLERS, ("8:0", "259:1")) == EVERYTHING


@pytest.mark.parametrize("held", cgroup.CONTROLLERS)
def test_only_limits_that_a_cgroup_enforces_are_set(held):
    expected = tuple(item for item in EVERYTHING if item[0].startswith(f"{held}."))
    assert cgroup.settings(LIMITS, [held], ("8:0", "259:1")) == expected
    assert cgroup.settings(LIMITS, [], ("8:0",)) == ()


def test_limits_that_are_not_requested_are_not_set():
    nothing = Limits(memory=None, cpu=None, pids=None, io=None)
    assert cgroup.settings(nothing, cgroup.CONTROLLERS, ("8:0",)) == ()


@given(st.integers(1, 512_000))
def test_the_kernel_accepts_every_cpu_share(millicores):
    """Check the bounds: the kernel accepts no quota below a millisecond and no period above a
    second.
    """
    ((file, value),) = cgroup.settings(Limits(cpu=millicores), ["cpu"], ())
    quota, period = map(int, value.split())
    assert file == "cpu.max"
    assert quota >= 1000
    assert 1000 <= period <= 1_000_000
    assert quota * 1000 == millicores * period


class Layout:
    def __init__(self, base):
        self.cgroup = base
        self.run = "17-abcd"
        self.disks = ("8:0",)


def held(control, mechanism):
    return Held(control=control, asked="1", stated=True, mechanism=mechanism, status="applied")


def test_a_plan_with_a_cgroup_limit_creates_a_cgroup_and_enters_it():
    controls = [
        held("memory", "cgroup memory"),
        held("pids", "RLIMIT_NPROC"),
        held("cpu", "sampling"),
    ]
    leaf, enter = cgroup.plan(LIMITS, controls, Layout(Base(path="/cg/x", controllers=("memory",))))
    assert leaf == Leaf(
        base="/cg/x", run="17-abcd", controllers=("memory",), settings=EVERYTHING[:3]
    )
    assert leaf.path == leaf.residue == "/cg/x/corral/17-abcd"
    assert "memory.max = 67108864" in leaf.describe()
    assert (leaf.stage, enter) == ("supervisor", Enter())


def test_a_plan_without_a_cgroup_limit_creates_no_cgroup():
    base = Base(path="/cg", controllers=())
    assert cgroup.plan(LIMITS, [held("pids", "RLIMIT_NPROC")], Layout(base)) == []
    assert cgroup.plan(LIMITS, [held("memory", "cgroup memory")], Layout(None)) == []


@pytest.mark.parametrize(
    ("value", "seen", "expected"),
    [
        ("67108864", "67108864\n", True),
        ("67108865", "67108864\n", True),
        ("67108865", "67108865\n", True),
        ("67108864", "max\n", False),
        ("67108864", "", False),
        ("5000 100000", "5000 100000\n", True),
        ("5000 100000", "max 100000\n", False),
        ("21", "21\n", True),
        ("8:0 rbps=5 wbps=5", "259:0 rbps=5 wbps=5 riops=max wiops=max\n", False),
        ("8:0 rbps=5 wbps=5", "8:0 rbps=5 wbps=max riops=max wiops=max\n", False),
        ("8:0 rbps=5 wbps=5", "259:0 rbps=1\n8:0 rbps=5 wbps=5 riops=max wiops=max\n", True),
    ],
)
def test_read_back_values_are_compared_with_written_ones(value, seen, expected):
    assert cgroup.agrees(value, seen, 4096) is expected


def account(path, **files):
    for name, text in files.items():
        (path / name.replace("_", ".", 1)).write_text(text)
    return Cgroup(path=str(path)).add_counts(Reaped(status=0, cpu=0.001, memory=5, hit=("disk",)))


def test_usage_is_what_the_kernel_counted(tmp_path):
    seen = account(
        tmp_path,
        memory_events="low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 1\n",
        memory_peak="123456\n",
        cpu_stat="usage_usec 9000\nuser_usec 5000\n",
        pids_events="max 3\n",
        pids_peak="12\n",
    )
    assert (seen.memory, seen.cpu, seen.tasks) == (123456, 0.009, 11)
    assert seen.hit == ("memory", "pids", "disk")


def test_memory_that_was_reclaimed_at_the_limit_does_not_count_as_a_kill(tmp_path):
    seen = account(tmp_path, memory_events="max 7\noom 0\noom_kill 0\n", pids_events="max 0\n")
    assert seen.hit == ("disk",)


def test_counters_that_older_kernels_lack_are_absent(tmp_path):
    assert account(tmp_path) == Reaped(status=0, cpu=0.001, memory=5, hit=("disk",))


@pytest.mark.skipif(sys.platform != "linux", reason="uses Linux flags")
def test_removing_an_absent_path_is_not_an_error(tmp_path):
    cgroup.remove(str(tmp_path / "corral" / "gone"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the type of a file system")
@pytest.mark.parametrize("kind", ["link", "pipe", "file", "hard link"])
def test_links_and_files_outside_of_a_cgroup_are_not_written(tmp_path, kind):
    victim, path = tmp_path / "victim", tmp_path / "cgroup.kill"
    victim.write_text("untouched")
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "hard link":
        os.link(victim, path)
    else:
        path.touch()
    with pytest.raises(OSError, match="cgroup"):
        cgroup.write(str(path), "1")
    cgroup.remove(str(tmp_path))
    assert victim.read_text() == "untouched"
    assert kind != "file" or path.read_text() == ""
