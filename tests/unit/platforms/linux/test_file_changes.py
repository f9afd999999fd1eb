"""Test how the supervisor finds files when it changes their modes and times for a target."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import os
import stat
import struct
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("needs Linux", allow_module_level=True)

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.abi.linux_notifications import Notification
from corral.platforms.linux import file_changes
from corral.platforms.linux.calling_thread import PATH_MAX, CallingThread, TargetIds
from corral.platforms.linux.file_changes import Budget, FileChanges, Finder, Place, clean, join


@pytest.fixture
def tree(tmp_path):
    """Yield a directory, and a finder for a target that may change `one` and `two` in this
    directory, but not `outside`.
    """
    for name in ("one/below", "two", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("x")
    (tmp_path / "one/file").write_text("x")
    places = []
    for name in ("one", "two"):
        path = str(tmp_path / name)
        written = str(tmp_path / f"link-to-{name}")
        os.symlink(path, written)
        places.append(Place(fd=os.open(path, os.O_PATH), path=path, written=written))
    yield tmp_path, Finder(places)
    for place in places:
        os.close(place.fd)


def found(finder, path, *, follow=True):
    try:
        fd = finder.find(str(path), follow=follow)
    except OSError as error:
        return errno.errorcode[error.errno]
    seen = os.fstat(fd)
    os.close(fd)
    return seen.st_ino


def links(top):
    made = {
        "relative": "file",
        "up": "below/../file",
        "whole": f"{top}/one/file",
        "other": f"{top}/two/file",
        "other relative": "../two/file",
        "directory": "below",
        "other directory": f"{top}/two",
        "loop": "loop",
        "whole loop": f"{top}/one/whole loop",
        "out": f"{top}/outside/file",
        "out relative": "../outside/file",
        "out and back": f"{top}/outside/../one/file",
        "magic": "/proc/self/cwd",
        "root": "/",
    }
    for name, target in made.items():
        os.symlink(target, top / "one" / name)


def test_links_are_followed_only_inside_of_writable_directories(tree):
    top, finder = tree
    links(top)
    own, two = (os.stat(top / name / "file").st_ino for name in ("one", "two"))
    below = os.stat(top / "one/below/file").st_ino
    expected = {
        "file": own, "relative": own, "up": own, "whole": own, "other": two, "other relative": two,
        "directory/file": below, "other directory/file": two, "loop": "ELOOP", "whole loop": "ELOOP",
        "out": "EPERM", "out relative": "EPERM", "out and back": "EPERM", "magic": "EPERM",
        "magic/file": "EPERM", "root": "EPERM", "root/etc/passwd": "EPERM", "missing": "ENOENT",
        "below/../file": own, "../outside/file": "EPERM", "file/": "ENOTDIR", "": os.stat(top / "one").st_ino,
        "below/": os.stat(top / "one/below").st_ino, "./below/./file": below, "directory/": os.stat(top / "one/below").st_ino,
        "other directory/": os.stat(top / "two").st_ino,
    }  # fmt: skip
    assert {path: found(finder, f"{top}/one/{path}") for path in expected} == expected


def test_a_lookup_that_does_not_follow_links_finds_the_link_itself(tree):
    top, finder = tree
    links(top)
    for name in ("relative", "whole", "out", "magic"):
        link = os.lstat(top / "one" / name).st_ino
        assert found(finder, top / "one" / name, follow=False) == link
    assert found(finder, f"{top}/one/other directory/file", follow=False) != "EPERM"
    assert found(finder, f"{top}/one/out/", follow=False) == "EPERM"


def test_paths_outside_of_writable_directories_are_not_looked_up(tree, monkeypatch):
    """Check that corral does not look up paths outside the directories that the target may write
    to. Such a lookup could wait for a network file system.
    """
    top, finder = tree
    monkeypatch.setattr(file_changes, "open_beneath", None)
    for path in (top / "outside/file", top, f"{top}/ones/file", "/", "/proc/self/cwd", "relative"):
        assert found(finder, path) == "EPERM"


def test_a_writable_directory_that_was_moved_is_not_found_under_its_old_path(tree):
    top, finder = tree
    own = os.stat(top / "one/file").st_ino
    assert found(finder, top / "link-to-one/file") == own
    os.rename(top / "one", top / "moved")
    (top / "one").mkdir()
    (top / "one/file").write_text("other")
    assert found(finder, top / "link-to-one/file") == "EPERM"
    assert found(finder, top / "one/file") == "EPERM"
    assert found(finder, top / "moved/file") == own


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["..", ".", "", "below", "file", "directory", "out", "root", "magic", "other directory"]
        ),
        max_size=6,
    )
)
def test_every_file_that_a_lookup_finds_is_in_a_writable_directory(parts):
    import pathlib
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        top = pathlib.Path(os.path.realpath(name))
        for directory in ("one/below", "two", "outside"):
            (top / directory).mkdir(parents=True)
            (top / directory / "file").write_text("x")
        links(top)
        places = [
            Place(fd=os.open(top / one, os.O_PATH), path=str(top / one), written=str(top / one))
            for one in ("one", "two")
        ]
        inner = {
            os.lstat(os.path.join(base, one)).st_ino
            for one in ("one", "two")
            for base, directories, files in os.walk(top / one)
            for one in (".", *directories, *files)
        }
        result = found(Finder(places), join(f"{top}/one", "/".join(parts) or "."))
        for place in places:
            os.close(place.fd)
        assert isinstance(result, str) or result in inner


def test_paths_are_joined_and_cleaned():
    assert join("/a/b", "../c") == "/a/c"
    assert clean(join("/a/b", "./../../../c/../d")) == "/c/../d"
    assert join("/a/b", "..") == "/a/"
    assert join("/a/b", "c/..") == "/a/b/c/.."
    assert clean("//a/./b//") == "/a/b/"
    assert clean("/a/.") == "/a/"
    assert clean("/") == "//"


def calling() -> CallingThread:
    request = Notification(id=0, pid=os.getpid(), number=0, arguments=())
    return CallingThread(request, TargetIds(uid=os.geteuid(), gid=os.getegid()))


def test_a_path_is_read_up_to_the_end_of_its_page():
    """Check that corral can read a path that ends exactly at the end of a page, even if the next
    page is protected. Reading fails only at an address that is not mapped.
    """
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None)
    memory[mmap.PAGESIZE - 5 : mmap.PAGESIZE] = b"path\0"
    assert libc.mprotect(ctypes.c_void_p(address + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    assert calling().read_text(address + mmap.PAGESIZE - 5) == b"path"
    memory[mmap.PAGESIZE - 1 : mmap.PAGESIZE] = b"x"
    # Like a debugger, /proc/PID/mem ignores page protection, so reading fails only where no page is
    # mapped.
    assert calling().read_text(address + mmap.PAGESIZE - 5) == b"pathx"
    with pytest.raises(OSError, match="cannot be read") as caught:
        calling().read_text(0)
    assert caught.value.errno == errno.EFAULT


@pytest.mark.parametrize(("length", "fits"), [(PATH_MAX - 1, True), (PATH_MAX, False)])
def test_a_path_has_a_maximum_length(length, fits):
    text = ctypes.create_string_buffer(b"x" * length, 3 * PATH_MAX)
    if fits:
        assert calling().read_text(ctypes.addressof(text)) == b"x" * length
    else:
        with pytest.raises(OSError, match="too long") as caught:
            calling().read_text(ctypes.addressof(text))
        assert caught.value.errno == errno.ENAMETOOLONG


def test_times_in_every_format_of_the_system_calls_are_converted():
    def read(kind, raw):
        text = ctypes.create_string_buffer(raw, len(raw))
        found = file_changes.read_times(calling(), kind, ctypes.addressof(text))
        return struct.unpack("=qqqq", found)

    assert file_changes.read_times(calling(), "timespec", 0) is None
    assert read("timespec", struct.pack("=qqqq", 1, 2, -3, 4)) == (1, 2, -3, 4)
    assert read("timeval", struct.pack("=qqqq", 1, 2, 3, 999_999)) == (1, 2000, 3, 999_999_000)
    assert read("utimbuf", struct.pack("=qq", 5, 6)) == (5, 0, 6, 0)
    for wrong in (-1, 1_000_000, (1 << 30) - 1):
        with pytest.raises(OSError, match="the value is not a time"):
            read("timeval", struct.pack("=qqqq", 1, wrong, 3, 4))


def test_a_flood_is_limited_to_its_share_of_processor_time():
    clock = [0.0]
    budget = Budget(lambda: clock[0])
    used = 0.0
    while not budget.use(0.001):
        used += 0.001
    assert used == pytest.approx(file_changes.BURST_SECONDS, rel=0.01)
    used, started = 0.0, clock[0]
    while used < 1:
        clock[0] += budget.use(0.001)
        used += 0.001
    assert used / (clock[0] - started) == pytest.approx(file_changes.SHARE, rel=0.01)


def test_a_call_is_denied_if_its_thread_cannot_be_started(monkeypatch):
    def fail(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(file_changes._thread, "start_new_thread", fail)
    reading, writing = os.pipe()
    changes = FileChanges([], os.geteuid(), os.getegid(), (0, 0))
    request = Notification(id=1, pid=os.getpid(), number=0, arguments=(0,) * 6, listener=reading)
    before = len(os.listdir("/proc/self/fd"))
    assert changes.decide("chmod", request).verdict == "deny"
    assert len(os.listdir("/proc/self/fd")) == before
    changes.release()
    os.close(reading)
    os.close(writing)


def test_without_the_rights_of_the_target_nothing_is_changed(tmp_path, monkeypatch):
    """Check that the thread that changes files answers every call with EPERM if it cannot switch to
    the target's rights.
    """
    import _thread

    path = tmp_path / "file"
    path.write_text("x")
    path.chmod(0o644)
    answers, done = [], _thread.allocate_lock()
    done.acquire()

    def send(_listener, _call, *, error):
        answers.append(error)
        done.release()

    monkeypatch.setattr(file_changes.linux_notifications, "send", send)
    monkeypatch.setattr(file_changes.linux_notifications, "is_waiting", lambda _: True)
    monkeypatch.setattr(file_changes, "_has_become", lambda *_: False)
    fd = os.open(tmp_path, os.O_PATH)
    place = Place(fd=fd, path=str(tmp_path), written=str(tmp_path))
    changes = FileChanges([place], os.geteuid(), os.getegid(), (0, 0))
    text = ctypes.create_string_buffer(os.fsencode(path))
    reading, writing = os.pipe()
    arguments = (ctypes.addressof(text), 0o777, 0, 0, 0, 0)
    request = Notification(id=1, pid=os.getpid(), number=0, arguments=arguments, listener=reading)
    assert changes.decide("chmod", request).verdict == "answer_later"
    assert done.acquire(timeout=30)
    changes.release()
    os.close(reading)
    os.close(writing)
    assert answers == [errno.EPERM]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_failed_lookups_leave_no_memory_behind(tree):
    """Count the objects that failed lookups leave behind. The supervisor runs without the garbage
    collector, so an error that refers to itself would never be freed.
    """
    top, finder = tree
    (top / "one/out").symlink_to(top / "outside")
    paths = [
        top / name for name in ("one/missing", "one/file/below", "one/out/file", "outside/file")
    ]
    gc.collect()
    gc.disable()
    try:
        for path in paths * 10:
            assert not isinstance(found(finder, path), int)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_the_number_of_waiting_calls_is_limited(monkeypatch):
    """Check that the number of waiting calls is limited. Otherwise a target could leave any number
    of calls waiting, by starting children and killing them while their calls wait.
    """
    monkeypatch.setattr(file_changes._thread, "start_new_thread", lambda *_: None)
    reading, writing = os.pipe()
    changes = FileChanges([], os.geteuid(), os.getegid(), (0, 0))
    request = Notification(id=1, pid=os.getpid(), number=0, arguments=(0,) * 6, listener=reading)
    for _ in range(file_changes.MAX_JOBS):
        assert changes.decide("chmod", request).verdict == "answer_later"
    assert changes.decide("chmod", request).verdict == "deny"
    os.close(changes._listener)
    os.close(reading)
    os.close(writing)
