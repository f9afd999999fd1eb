"""Where a granted path led first is remembered; a change is refused."""

import os
import shlex
import stat
import sys

import pytest

from corral.errors import ChangedPathsError, PolicyError
from corral.policy import granted_paths
from corral.policy.granted_paths import check_granted_paths, memory_file, read_memory, remember
from corral.policy.path_grants import make_grant

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links as POSIX has them")


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
def test_a_path_that_leads_elsewhere_is_refused(home, linked):
    path = home / "project/data"
    (home / "first").mkdir()
    if linked:
        replace_by_link(path, home / "first")
    check(home, "project/data")
    check(home, "project/data")
    replace_by_link(path, home / "private")
    with pytest.raises(ChangedPathsError, match="leads to") as error:
        check(home, "project/data")
    words = shlex.split(str(error.value.hint).partition(": ")[2])
    assert words == ["corral", "approve", "--path", str(path)]
    with pytest.raises(ChangedPathsError):
        check(home, "project/data")  # a refusal remembers nothing
    remember(memory_file(str(home / "home")), {str(path): str(home / "private")})
    check(home, "project/data")


def test_a_link_above_the_path_counts(home):
    (home / "private/data").mkdir()
    check(home, "project/data")
    (home / "project").rename(home / "away")
    (home / "project").symlink_to("private")
    with pytest.raises(ChangedPathsError):
        check(home, "project/data")


def test_the_memory_is_the_users_alone(home):
    check(home, "project/data")
    file = memory_file(str(home / "home"))
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(file)).st_mode) == 0o700
    replace_by_link(home / "project/data", home / "private")
    os.chmod(file, 0o666)
    with pytest.raises(PolicyError, match="only you"):
        check(home, "project/data")
    os.unlink(file)
    os.symlink(home / "private", file)
    with pytest.raises(PolicyError, match="cannot be used"):
        check(home, "project/data")
    os.unlink(file)
    os.mkfifo(file)
    with pytest.raises(PolicyError, match="only you"):
        check(home, "project/data")


@pytest.mark.parametrize("content", [b"a", b"a\0", b"a\0b", b"a\0b\0c\0", b"\0" * (1 << 21)])
def test_a_broken_memory_is_refused(home, content):
    file = memory_file(str(home / "home"))
    os.makedirs(os.path.dirname(file), mode=0o700)
    with open(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as stream:
        stream.write(content)
    check(home, "project/data")  # without a link there is nothing to be refused
    replace_by_link(home / "project/data", home / "private")
    with pytest.raises(PolicyError, match="cannot be used"):
        check(home, "project/data")


def test_without_memory_links_are_refused_and_other_paths_are_not(home):
    (home / "home/.local").write_text("")
    check(home, "project/data")
    replace_by_link(home / "project/data", home / "private")
    with pytest.raises(PolicyError) as error:
        check(home, "project/data")
    assert str(error.value.hint).endswith(str(home / "private"))


def test_names_in_a_directory_like_tmp_are_used_once(home):
    (home / "project").chmod(0o1777)
    check(home, "project/data")
    assert read_memory(memory_file(str(home / "home"))) == {}
    replace_by_link(home / "project/data", home / "private")
    check(home, "project/data")
    assert read_memory(memory_file(str(home / "home"))) == {
        str(home / "project/data"): str(home / "private")
    }


def test_the_memory_forgets_paths_that_are_gone_once_it_is_large(home, monkeypatch):
    file = memory_file(str(home / "home"))
    remember(file, {"/gone/one": "/gone/one", "/gone/two\n": "/x"})
    assert read_memory(file) == {"/gone/one": "/gone/one", "/gone/two\n": "/x"}
    monkeypatch.setattr(granted_paths, "COMPACT_BYTES", 64)
    check(home, "project/data")
    path = str(home / "project/data")
    assert read_memory(file) == {path: path}
