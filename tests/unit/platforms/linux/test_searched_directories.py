"""Test the cache of directories in which corral has searched for secrets and found none. The next
search must notice every change in a cached directory, even a change that the target tries to hide.
"""

import os
import shutil
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="requires Linux change times")

DIRECTORIES = 60


@pytest.fixture
def tree(tmp_path, monkeypatch):
    from corral.platforms.linux import searched_directories

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(searched_directories, "find_file_system", lambda _: "ext4")
    monkeypatch.setattr(searched_directories, "SETTLED_NS", -(10**12))
    for number in range(DIRECTORIES):
        made = tmp_path / "project" / f"a{number % 5}" / "b" / f"c{number}"
        made.mkdir(parents=True)
        (made / "file.py").write_text("")
    return tmp_path / "project"


@pytest.fixture
def search(tree, monkeypatch):
    """Return a function that searches the tree. It returns the paths that corral would hide or
    protect, and the number of directories that it listed.
    """
    from corral.platforms.linux.mechanisms import masks
    from corral.policy.model import Grant

    def find():
        listed = []
        real = os.open

        def open_and_count(path, flags, *mode):
            if flags & os.O_DIRECTORY:
                listed.append(path)
            return real(path, flags, *mode)

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", open_and_count)
            grant = Grant(
                path=str(tree), access="write", directory=True, device=0, inode=0, owner=0, group=0
            )
            found = masks.find([grant], str(tree.parent))
        inner = [path for path in listed if str(path).startswith(str(tree))]
        return {os.path.relpath(mask.path, tree) for mask in found.masks}, len(inner)

    return find


def test_a_second_search_lists_no_unchanged_directory(search):
    assert search() == (set(), 1 + 5 + 5 + DIRECTORIES)
    assert search() == (set(), 0)


def add_secret(tree):
    (tree / "a1/b/c1/.env.production").write_text("secret")
    return {"a1/b/c1/.env.production"}


def hide_the_time_of_a_change(tree):
    place = tree / "a1/b/c1"
    seen = place.stat()
    (place / ".env").write_text("secret")
    os.utime(place, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert place.stat().st_mtime_ns == seen.st_mtime_ns
    return {"a1/b/c1/.env"}


def rename_a_file(tree):
    os.rename(tree / "a1/b/c1/file.py", tree / "a1/b/c1/.env")
    return {"a1/b/c1/.env"}


def plant_a_repository(tree):
    (tree / "a1/b/c1/.git").write_text("gitdir: /elsewhere")
    return {"a1/b/c1/.git"}


def exchange_directories(tree):
    """Replace a searched directory with a directory that contains a secret."""
    fresh = tree.parent / "fresh"
    fresh.mkdir()
    (fresh / ".env").write_text("secret")
    shutil.rmtree(tree / "a1/b/c1")
    os.rename(fresh, tree / "a1/b/c1")
    return {"a1/b/c1/.env"}


def make_a_directory(tree):
    (tree / "a1/b/c1/new/deep").mkdir(parents=True)
    (tree / "a1/b/c1/new/deep/.env").write_text("secret")
    return {"a1/b/c1/new/deep/.env"}


def make_a_directory_in_a_large_one(tree):
    place = tree / "a1/b/c1"
    for number in range(3000):
        (place / f"{number:030}").touch()
    (place / "new").mkdir()
    (place / "new/.env").write_text("secret")
    return {"a1/b/c1/new/.env"}


CHANGES = (
    add_secret, hide_the_time_of_a_change, rename_a_file, plant_a_repository, exchange_directories,
    make_a_directory, make_a_directory_in_a_large_one,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_found_and_few_directories_are_listed_again(search, tree, change):
    search()
    expected = change(tree)
    found, listed = search()
    assert found >= expected
    assert 0 < listed < 6
    # Directories with secrets are not cached, so another search finds the secrets again.
    assert search()[0] >= expected


def test_a_directory_that_cannot_be_listed_is_hidden(search, tree):
    search()
    os.chmod(tree / "a1/b/c1", 0)
    try:
        found, listed = search()
        assert listed < 6
        if os.geteuid():
            assert "a1/b/c1" in found
    finally:
        os.chmod(tree / "a1/b/c1", 0o700)


def test_a_directory_that_just_changed_is_not_remembered(search, monkeypatch):
    from corral.platforms.linux import searched_directories

    monkeypatch.setattr(searched_directories, "SETTLED_NS", 10**12)
    first = search()
    assert search() == first


def test_directories_on_unknown_file_systems_are_not_remembered(search, monkeypatch):
    from corral.platforms.linux import searched_directories

    monkeypatch.setattr(searched_directories, "find_file_system", lambda _: "vfat")
    first = search()
    assert search() == first


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_damaged_record_is_not_used(search, tree, at):
    first = search()
    [path] = (tree.parent / "cache/corral/searched").iterdir()
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert search() == first
    assert search() == (set(), 0)


def exchange(one, other):
    os.rename(one, f"{one}.old")
    os.rename(other, one)
    os.rename(f"{one}.old", other)


def test_a_directory_that_is_exchanged_during_its_search_is_not_remembered(
    search, tree, monkeypatch
):
    """Let a directory without a secret take the place of `a1` while a search lists `a1/b/c1`. Then
    put `a1` back, and check that the next search finds the secret.
    """
    (tree / "a1/b/c1/.env").write_text("secret")
    clean = tree.parent / "clean"
    (clean / "b/c1").mkdir(parents=True)
    real = os.fstat

    def fstat_and_exchange(fd):
        found = real(fd)
        is_target = os.readlink(f"/proc/self/fd/{fd}") == str(tree / "a1/b/c1")
        if is_target:
            exchange(tree / "a1", clean)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", fstat_and_exchange)
        search()
    assert (clean / "b/c1/.env").exists()  # make sure that the directory was exchanged
    exchange(tree / "a1", clean)
    assert "a1/b/c1/.env" in search()[0]


@pytest.mark.parametrize("put", [None, "file", "link"])
def test_a_directory_that_is_moved_away_during_its_search_is_hidden(search, tree, monkeypatch, put):
    """Move a directory away just before the search opens it, and back before the search ends, as a
    target could do. In the meantime a file or a link may take its place.
    """
    moved, real = tree / "a1/b/c1", os.open

    def open_moved(path, *rest):
        if path != str(moved):
            return real(path, *rest)
        os.rename(moved, tree.parent / "away")
        if put == "file":
            moved.touch()
        elif put == "link":
            moved.symlink_to("c2")
        try:
            return real(path, *rest)
        finally:
            moved.unlink(missing_ok=True)
            os.rename(tree.parent / "away", moved)

    assert "a1/b/c1" not in search()[0]  # Sanity check
    (moved / "new").touch()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_moved)
        assert "a1/b/c1" in search()[0]
    assert "a1/b/c1" not in search()[0]
