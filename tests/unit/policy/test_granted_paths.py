"""Test that corral remembers the real path of a grant, and refuses the grant if its path later
becomes a link to somewhere else.
"""

import os
import shlex
import stat
import sys

import pytest

from corral.abi.private_directory import lock
from corral.errors import ChangedPathsError, PolicyError
from corral.policy import granted_paths
from corral.policy.granted_paths import check_granted_paths, memory_file, read_memory, remember
from corral.policy.path_grants import make_grant

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX links")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    for name in ("home", "project/data", "private"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def check(home, *names):
    check_granted_paths(
        [make_grant("read", str(home / name)) for name in names], str(home / "home")
    )


def replace_by_link(path, target):
    path.unlink() if path.is_symlink() else path.rmdir()
    path.symlink_to(target)


@pytest.mark.parametrize("linked", [False, True])
def test_a_granted_path_that_leads_to_another_file_is_refused(home, linked):
    path = home / "project/data"
    (home / "first").mkdir()
    if linked:
        replace_by_link(path, home / "first")
    check(home, "project/data")
    check(home, "project/data")
    replace_by_link(path, home / "private")
    with pytest.raises(ChangedPathsError, match=r"leads to|is now a link to") as error:
        check(home, "project/data")
    words = shlex.split(str(error.value.hint).partition(": ")[2])
    assert words == ["corral", "approve", "--path", str(path)]
    with pytest.raises(ChangedPathsError):
        check(home, "project/data")  # the refused path was not remembered
    remember(memory_file(str(home / "home")), {str(path): str(home / "private")})
    check(home, "project/data")


def test_a_changed_link_above_the_path_is_refused(home):
    (home / "private/data").mkdir()
    check(home, "project/data")
    (home / "project").rename(home / "away")
    (home / "project").symlink_to("private")
    with pytest.raises(ChangedPathsError):
        check(home, "project/data")


def test_a_link_directly_in_a_sticky_directory_needs_approval(home):
    """Use a directory in which other users may make files. corral does not remember paths directly
    in such a directory, so it cannot know whether a link there is new. The user must approve it.
    """
    (home / "project").chmod(0o1777)
    check(home, "project/data")
    assert read_memory(memory_file(str(home / "home"))) == {}
    replace_by_link(home / "project/data", home / "private")
    with pytest.raises(ChangedPathsError, match="is now a link"):
        check(home, "project/data")
    path = str(home / "project/data")
    remember(memory_file(str(home / "home")), {path: str(home / "private")})
    check(home, "project/data")  # Sanity check: now the path is approved
    (home / "project/inner").mkdir()
    (home / "project/inner/link").symlink_to(home / "private")
    check(home, "project/inner/link")


def test_the_record_of_granted_paths_is_private_to_the_user(home):
    check(home, "project/data")
    file = memory_file(str(home / "home"))
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(file)).st_mode) == 0o700
    replace_by_link(home / "project/data", home / "private")
    os.chmod(file, 0o666)
    with pytest.raises(PolicyError, match="other users have access"):
        check(home, "project/data")
    os.unlink(file)
    os.symlink(home / "private", file)
    with pytest.raises(PolicyError, match="cannot be used"):
        check(home, "project/data")
    os.unlink(file)
    os.mkfifo(file)
    with pytest.raises(PolicyError, match="other users have access"):
        check(home, "project/data")


def write_memory(home, content: bytes) -> str:
    file = memory_file(str(home / "home"))
    os.makedirs(os.path.dirname(file), mode=0o700)
    with open(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as stream:
        stream.write(content)
    return file


def test_a_record_that_is_too_large_is_refused(home):
    write_memory(home, b"\0" * (1 << 21))
    check(home, "project/data")  # Sanity check: a path without links is accepted
    replace_by_link(home / "project/data", home / "private")
    with pytest.raises(PolicyError, match="cannot be used"):
        check(home, "project/data")


@pytest.mark.parametrize("end", [b"", b"a", b"a\0", b"a\0b", b"a\0b\0c\0", b"\0\0", b"a\0\0\0\0"])
def test_a_record_with_a_damaged_end_is_repaired(home, end):
    """Damage the end of the file, as a power failure or a full disk can. corral must still use the
    complete entries, and must be able to add new ones.
    """
    old, new = (str(home / "project" / name) for name in ("old", "data"))
    os.mkdir(old)
    file = write_memory(home, f"{old}\0{old}\0".encode() + end)
    check(home, "project/data")
    known = read_memory(file)
    assert known[old] == old
    assert known[new] == new
    for name in ("project/old", "project/data"):
        replace_by_link(home / name, home / "private")
        with pytest.raises(PolicyError, match="is now a link"):
            check(home, name)


def test_if_paths_cannot_be_recorded_links_are_refused_and_other_paths_are_accepted(home):
    (home / "home/.local").write_text("")
    check(home, "project/data")
    replace_by_link(home / "project/data", home / "private")
    with pytest.raises(PolicyError) as error:
        check(home, "project/data")
    assert str(error.value.hint).endswith(str(home / "private"))


def test_a_large_record_drops_paths_that_no_longer_exist(home, monkeypatch):
    file = memory_file(str(home / "home"))
    remember(file, {"/gone/one": "/gone/one", "/gone/two\n": "/x"})
    assert read_memory(file) == {"/gone/one": "/gone/one", "/gone/two\n": "/x"}
    monkeypatch.setattr(granted_paths, "COMPACT_BYTES", 64)
    check(home, "project/data")
    path = str(home / "project/data")
    assert read_memory(file) == {path: path}


@pytest.mark.skipif(os.name == "nt", reason="Windows writes to a locked file differently")
def test_a_run_on_a_full_disk_keeps_the_entries_of_another_run(tmp_path, monkeypatch):
    """Make a run fail after it has written only a part of its entry. Another run that wants to add
    an entry must wait until the first run has removed this part.
    """
    file = str(tmp_path / "private" / "memory")
    remember(file, {"/one": "/one"})
    real, seen = os.write, []

    def write_a_part(descriptor, data):
        monkeypatch.setattr(os, "write", real)
        with open(file, "r+b") as other:
            try:
                lock(other.fileno(), wait=False)
            except BlockingIOError:
                seen.append("waits")
            else:
                remember(file, {"/two": "/two"})
        return real(descriptor, data[:3])

    monkeypatch.setattr(os, "write", write_a_part)
    with pytest.raises(PolicyError, match="No space left on device"):
        remember(file, {"/three": "/three"})
    assert read_memory(file) == {"/one": "/one"}
    assert seen == ["waits"]
    remember(file, {"/two": "/two"})  # Sanity check: the lock is free again
    assert read_memory(file) == {"/one": "/one", "/two": "/two"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no rlimits")
def test_a_full_disk_leaves_no_partial_entry(tmp_path):
    """Limit the size of files to imitate a full disk. No partial entry may remain, because it would
    make corral refuse every later run.
    """
    import resource
    import signal

    file = str(tmp_path / "private" / "memory")
    granted_paths.remember(file, {"/one": "/one"})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        with pytest.raises(PolicyError, match="No space left on device"):
            granted_paths.remember(file, {"/" + "long" * 100: "/"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert granted_paths.read_memory(file) == {"/one": "/one"}
