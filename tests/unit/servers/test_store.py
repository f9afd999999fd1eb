"""Test the store of installed packages: an entry is either complete or absent, corral refuses an
entry that was changed, and corral does not use other users' entries.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest

from corral import directories
from corral.cli import main
from corral.errors import SandboxError
from corral.policy.own_files import check_own, own_paths
from corral.policy.path_grants import Refused, make_grant
from corral.servers.store import locks, store
from corral.servers.store.tree import is_directory, is_link, remove_tree, tree_digest, walk

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX modes and fifos")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    yield tmp_path
    # pytest cannot remove the store's read-only directories. On macOS the store is in `home`.
    for name in ("cache", "home"):
        remove_tree(str(tmp_path / name))


def put(key: str = "npm:thing@1", content: str = "code", **more: object) -> store.Entry:
    store.make_directories()
    place = store.make_staging(key)
    os.makedirs(f"{place}/lib")
    with open(f"{place}/lib/main.js", "w", encoding="utf-8") as file:
        file.write(content)
    if sys.platform != "win32":  # on Windows links need a privilege
        os.symlink("main.js", f"{place}/lib/link")
    values = {
        "key": key,
        "kind": "npm",
        "name": "thing",
        "version": "1",
        "command": ["node", "{tree}/lib/main.js"],
    }
    return store.commit(place, {**values, **more})


@POSIX
def test_the_error_for_an_unreachable_cache_names_the_variable_that_moves_it(home, monkeypatch):
    (home / "file").touch()
    monkeypatch.setenv("HOME", str(home / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    with pytest.raises(SandboxError, match="cannot be written") as refused:
        store.find("npm:thing@1")
    assert "XDG_CACHE_HOME" in str(refused.value.hint)


def test_a_stored_tree_is_found_by_its_key():
    made = put()
    found = store.find("npm:thing@1")
    assert found == made
    assert found.argv() == ["node", f"{found.path()}/lib/main.js"]
    assert os.path.basename(found.path()) == found.digest == tree_digest(found.path())
    assert (found.size, found.files) == (4, 1)
    assert store.find("npm:thing@2") is None
    assert os.listdir(store.staging_root()) == []


@POSIX
def test_a_stored_tree_is_private_and_read_only():
    made = put()
    for part in ("", "trees", "entries", "locks", "verified"):
        assert stat.S_IMODE(os.stat(store.store_path(part)).st_mode) == 0o700
    for path, found in walk(made.path()):
        if not stat.S_ISLNK(found.st_mode):
            assert not found.st_mode & 0o222, path


def test_a_stored_tree_can_never_be_granted(home):
    made = put()
    (home / "home").mkdir(exist_ok=True)
    free = home / "free"
    free.mkdir()
    places = own_paths(str(home / "home"))
    # Sanity check: a directory outside the store can be granted.
    check_own(make_grant("read", str(free)), places, {})
    for path in (store.store_path(), made.path(), f"{made.path()}/lib/main.js"):
        for access in ("read", "write"):
            with pytest.raises(Refused, match="corral's cache"):
                check_own(make_grant(access, path), places, {})


@POSIX
def test_nothing_is_stored_where_other_users_can_write():
    put()
    os.chmod(store.store_path(), 0o770)
    with pytest.raises(SandboxError, match="only you can write"):
        put("npm:other@1")
    os.chmod(store.store_path(), 0o700)
    put("npm:other@1")


@POSIX
@pytest.mark.parametrize("part", ["", "entries", "trees"])
def test_nothing_is_read_where_other_users_could_write(part):
    put()
    assert store.find("npm:thing@1") is not None
    os.chmod(store.store_path(part), 0o770)
    with pytest.raises(SandboxError, match="only you can write"):
        store.find("npm:thing@1")


@POSIX
def test_a_staging_directory_of_another_user_is_not_used(home):
    os.makedirs(store.staging_root(), mode=0o700)
    # Sanity check: with mode 0700 the directory can be used.
    os.rmdir(store.make_staging("npm:thing@1"))
    os.chmod(store.staging_root(), 0o777)
    with pytest.raises(SandboxError, match="only you can write"):
        store.make_staging("npm:thing@1")


def test_two_keys_can_share_a_tree():
    entry = put()
    store.add_key(entry, "npm:thing@1.0")
    found = store.find("npm:thing@1.0")
    assert found is not None
    assert (found.digest, found.command, found.key) == (
        entry.digest,
        entry.command,
        "npm:thing@1.0",
    )
    other = put("npm:other@1", "other")
    # This key already belongs to the first tree, so it is not given to the second tree.
    store.add_key(other, "npm:thing@1.0")
    assert store.find("npm:thing@1.0") == found


@pytest.mark.links
def test_a_store_that_is_a_link_is_refused(home):
    (home / "elsewhere").mkdir()
    os.makedirs(os.path.dirname(store.store_path()), mode=0o700)
    os.symlink(home / "elsewhere", store.store_path(), target_is_directory=True)
    with pytest.raises(SandboxError, match="not a directory"):
        put()


def change(path: str, content: str) -> None:
    os.chmod(path, 0o600)
    with open(path, "w", encoding="utf-8") as file:
        file.write(content)


def forget_boot(entry: store.Entry) -> None:
    os.unlink(store.store_path("verified", entry.digest))


def test_a_changed_tree_is_refused_at_the_first_use_after_a_boot():
    made = put()
    forget_boot(made)
    assert store.find(made.key) == made  # Sanity check: an unchanged tree is found and verified
    assert store.is_verified(made.digest)
    forget_boot(made)
    change(f"{made.path()}/lib/main.js", "evil")
    with pytest.raises(SandboxError, match="changed since its installation"):
        store.find(made.key)


@pytest.mark.parametrize(
    "act",
    [
        *("content", "extra", "gone", "renamed"),
        *(pytest.param(act, marks=POSIX) for act in ("bit", "link")),
    ],
)
def test_every_change_of_a_stored_tree_changes_its_digest(act):
    made = put()
    lib = f"{made.path()}/lib"
    os.chmod(lib, 0o700)
    os.chmod(f"{lib}/main.js", 0o600)
    if act == "content":
        change(f"{lib}/main.js", "evil")
    elif act == "bit":
        os.chmod(f"{lib}/main.js", 0o755)
    elif act == "link":
        os.unlink(f"{lib}/link")
        os.symlink("/etc/passwd", f"{lib}/link")
    elif act == "extra":
        os.mkdir(f"{lib}/more")
    elif act == "gone":
        os.unlink(f"{lib}/main.js")
    else:
        os.rename(f"{lib}/main.js", f"{lib}/other.js")
    assert tree_digest(made.path()) != made.digest


def test_times_and_the_owners_write_bit_do_not_change_the_digest():
    made = put()
    os.chmod(f"{made.path()}/lib/main.js", 0o600)
    os.utime(f"{made.path()}/lib/main.js", (1, 1))
    assert tree_digest(made.path()) == made.digest


@pytest.mark.links
@pytest.mark.parametrize("leads", ["/etc/passwd", "../../..", "../../../x"])
def test_a_link_that_leads_out_of_a_tree_is_refused(leads):
    store.make_directories()
    place = store.make_staging("key")
    os.symlink(leads, f"{place}/link")
    with pytest.raises(SandboxError, match="is a link to a path outside"):
        store.commit(place, {"key": "key", "kind": "npm", "name": "x", "version": "1"})
    assert store.entries() == []


class Found:
    """The result of lstat for a junction on Windows."""

    st_mode = stat.S_IFDIR | 0o777
    st_reparse_tag = 0xA0000003


def test_a_junction_counts_as_a_link(tmp_path):
    assert (is_link(Found), is_directory(Found)) == (True, False)
    found = os.lstat(tmp_path)
    assert (is_link(found), is_directory(found)) == (False, True)


@POSIX
def test_paths_that_are_not_files_are_refused():
    store.make_directories()
    place = store.make_staging("key")
    os.mkfifo(f"{place}/pipe")
    with pytest.raises(SandboxError, match="not a file or a directory"):
        store.commit(place, {"key": "key", "kind": "npm", "name": "x", "version": "1"})


def test_equal_content_is_stored_once():
    first, second = put("npm:a@1"), put("npm:b@1")
    assert first.digest == second.digest
    store.remove(first)
    assert store.find("npm:b@1") == second
    store.remove(second)
    assert os.listdir(store.store_path("trees")) == []


def test_a_damaged_tree_is_replaced_by_a_good_one():
    made = put("npm:a@1")
    change(f"{made.path()}/lib/main.js", "evil")
    again = put("npm:b@1")
    assert again.digest == made.digest == tree_digest(made.path())


def test_a_damaged_entry_counts_as_absent():
    made = put()
    path = store.entry_path(made.key)
    for text in (
        "",
        "{",
        "[]",
        '{"format": 1}',
        '{"format": 2}',
        json.dumps({"format": 1, "digest": "../.."}),
    ):
        change(path, text)
        assert store.find(made.key) is None


def test_an_entry_cannot_lead_out_of_the_store(home):
    made = put()
    path = store.entry_path(made.key)
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    change(path, json.dumps({**data, "digest": "../../../home"}))
    assert store.find(made.key) is None


HOLD = """
import sys
sys.path.insert(0, sys.argv[1])
from corral.servers.store import locks
with locks.Lock(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_has_one_owner_and_is_freed_when_the_owner_ends(home):
    source = os.path.dirname(os.path.dirname(directories.__file__))
    path = str(home / "lock")
    assert not locks.is_locked(path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, source, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout.readline().strip() == b"held"
        assert locks.is_locked(path)
        holder.kill()
        holder.wait()
        with locks.Lock(path):
            assert locks.is_locked(path)


def test_downloads_are_kept_for_a_day():
    kept = {}
    for key, age in (("npm:new@1", 0), ("npm:old@1", store.KEPT_DOWNLOADS_SECONDS + 60)):
        path = kept[key] = store.make_downloads(store.make_staging(key))
        changed = os.stat(path).st_mtime - age
        os.utime(path, (changed, changed))
    store.make_staging("npm:other@1")
    assert [os.path.isdir(path) for path in kept.values()] == [True, False]


def test_the_downloads_of_a_running_installation_are_kept_whatever_their_age():
    """Check that the downloads of a running installation are kept even if they look old. An
    installer may run for more than a day, or the clock may have been changed.
    """
    with store.lock_key("npm:old@1"):
        path = store.make_downloads(store.make_staging("npm:old@1"))
        os.utime(path, (0, 0))
        store.make_staging("npm:other@1")
        assert os.path.isdir(path)
    store.make_staging("npm:other@1")
    # Sanity check: when no installation runs, old downloads are removed.
    assert not os.path.isdir(path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can give files away")
def test_garbage_in_a_staging_root_of_another_user_is_not_collected():
    """Check that root does not remove garbage from another user's directory. corral changes a
    path's mode before it removes the path. At this moment the other user could replace the path
    with a link, and root would change the mode of another file.
    """
    store.make_directories()
    theirs = os.path.join(store.make_staging("npm:thing@1"), "theirs")
    os.mkdir(theirs)
    assert list(store.find_leftovers())
    os.chown(store.staging_root(), 65533, 65533)
    assert list(store.find_leftovers()) == []
    store.collect_garbage()
    assert os.path.isdir(theirs)


@pytest.mark.parametrize(
    ("error", "kept"),
    [(SandboxError, False), (store.UnfinishedError, True), (KeyboardInterrupt, True)],
)
def test_downloads_are_kept_if_the_installation_may_go_on(error, kept):
    with pytest.raises(error), store.StagingDirectory("npm:thing@1") as place:
        store.make_downloads(place)
        raise error("it ended")
    assert os.path.isdir(place + store.DOWNLOADS) == kept
    with store.StagingDirectory("npm:thing@1") as place:
        store.make_downloads(place)
    assert os.listdir(store.staging_root()) == []


def test_cache_gc_removes_only_unfinished_and_unused_trees(capsys):
    made = put()
    stray = store.store_path("trees", "0" * 64)
    os.mkdir(stray)
    killed = store.make_staging("npm:killed@1")
    with locks.Lock(store.lock_path("npm:busy@1")):
        busy = store.make_staging("npm:busy@1")
        assert main(["cache", "gc", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["removed"] == [stray, killed]
        assert os.path.isdir(busy)
    assert store.find(made.key) == made


def test_cache_commands_list_remove_and_verify_stored_trees(capfd):
    first = put("npm:first@1", "1", name="first")
    put("npm:second@1", "2", name="second")
    assert main(["cache", "ls", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)
    assert [row["key"] for row in rows] == ["npm:first@1", "npm:second@1"]
    assert rows[0]["path"] == first.path()
    assert main(["cache", "verify"]) == 0
    change(f"{first.path()}/lib/main.js", "evil")
    assert main(["cache", "verify"]) == 1
    changed = "corral: first 1 in the cache has changed since its installation"
    hint = "hint: remove it with `corral cache rm npm:first@1` and run again"
    assert capfd.readouterr().err.splitlines() == [changed, hint]
    os.rename(first.path(), f"{first.path()}-lost")
    assert main(["cache", "verify"]) == 1
    lost = "corral: first 1 in the cache cannot be read: No such file or directory"
    assert capfd.readouterr().err.splitlines() == [lost, hint]
    assert main(["cache", "rm", "npm:first@1"]) == 0
    assert main(["cache", "verify"]) == 0
    assert [entry.key for entry in store.entries()] == ["npm:second@1"]
    assert main(["cache", "rm", "first"]) == 125
    assert main(["cache", "bogus"]) == 2
    assert main(["cache", "rm"]) == 2


@POSIX
@pytest.mark.parametrize("name", ["abcdef", "\U0001f600" * 63], ids=["short", "long"])
def test_directories_too_deep_for_a_path_are_removed_too(home, name):
    """Make nested directories, one level at a time, until the whole path is too long for the
    system. A package's script can do so. In the case `long`, each name has few characters but many
    bytes. The removal must work with fewer open files than there are levels.
    """
    top = home / "deep"
    top.mkdir()
    code = f"import os\nfor _ in range(1500):\n    os.mkdir({name!r})\n    os.chdir({name!r})\nopen('f', 'w')"
    subprocess.run([sys.executable, "-c", code], cwd=top, check=True)
    with pytest.raises(OSError, match="too long"):
        list(walk(str(top)))
    remove = (
        "import resource, sys\n"
        "from corral.servers.store.tree import remove_tree\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "remove_tree(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", remove, str(top)], check=True)
    assert not top.exists()
