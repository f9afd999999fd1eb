"""Test grants on a real disk: which trees are refused, which access list entries are set and
removed, and what a target can access.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest

from corral.abi import win32, win32_files, win32_security
from corral.paths.windows import extended_path
from corral.plan.model import Results
from corral.platforms.windows import undo
from corral.platforms.windows.files import access_list, granted_tree, journal
from corral.platforms.windows.files.access_list import grant_sid
from corral.platforms.windows.mechanisms import path_grants
from windows.conftest import PYTHON, wine


@pytest.fixture(autouse=True)
def no_handle_is_left():
    before = win32.open_handles()
    yield
    assert win32.open_handles() == before


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file.txt").write_text("x")
    return str(tmp_path / "tree")


def root_of(path, access="write"):
    found = os.lstat(path)
    sid = grant_sid(path, access)
    return journal.Root(path=path, access=access, sid=sid, volume=found.st_dev, file=found.st_ino)


def walked(path):
    return sorted(
        (os.path.join(path, node.name) if node.name else path, node.directory)
        for node, _ in granted_tree.walk(path)
    )


def junction(target, path):
    winapi = pytest.importorskip("_winapi")
    try:
        winapi.CreateJunction(target, path)
    except OSError as error:
        pytest.skip(f"no junction can be made here: {error}")


def test_a_walk_finds_every_file(tree):
    assert walked(tree) == [
        (tree, True),
        (os.path.join(tree, "sub"), True),
        (os.path.join(tree, "sub", "file.txt"), False),
    ]


def test_a_walk_of_one_file_finds_that_file(tree):
    file = os.path.join(tree, "sub", "file.txt")
    assert walked(file) == [(file, False)]


def test_the_walk_finds_a_second_hard_link(tree, tmp_path):
    (tmp_path / "outside").write_text("secret")
    os.link(tmp_path / "outside", os.path.join(tree, "inside"))
    links = {node.name: node.links for node, _ in granted_tree.walk(tree)}
    assert (links["inside"], links["sub\\file.txt"]) == (2, 1)


def test_a_junction_stops_the_walk(tree, tmp_path):
    (tmp_path / "outside").mkdir()
    junction(str(tmp_path / "outside"), os.path.join(tree, "inside"))
    with pytest.raises(OSError, match="is a link or a mount point"):
        walked(tree)
    node = next(node for node in granted_tree.read_tree(tree).nodes if node.name == "inside")
    assert node.reparse


def test_a_directory_replaced_during_the_walk_is_refused(tree, tmp_path):
    """Replace `sub` with a junction during the walk. The walk then opens an object outside the
    tree, and must notice this from the handle's path.
    """
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file.txt").write_text("secret")
    with contextlib.closing(granted_tree.walk(tree)) as walk:
        assert [next(walk)[0].name, next(walk)[0].name] == ["", "sub"]
        os.rename(os.path.join(tree, "sub"), str(tmp_path / "away"))
        junction(str(tmp_path / "outside"), os.path.join(tree, "sub"))
        with pytest.raises(OSError, match=r"moved|link"):
            list(walk)


def test_a_handle_has_the_identity_that_stat_returns(tree):
    found = os.lstat(tree)
    with granted_tree.open_object(tree) as handle:
        assert granted_tree.has_identity(handle.value, found.st_dev, found.st_ino)
        assert not granted_tree.has_identity(handle.value, found.st_dev, found.st_ino + 1)
        assert not granted_tree.has_identity(handle.value, found.st_dev + 1, found.st_ino)


def test_a_replaced_root_is_refused(tree, tmp_path):
    root = root_of(tree)
    os.rename(tree, str(tmp_path / "away"))
    os.mkdir(tree)
    with pytest.raises(OSError, match="granted object was replaced by another") as caught:
        path_grants.set_entries(root, path_grants.Exceptions(), kept=False)
    assert caught.value.filename == tree


def test_a_missing_path_is_an_error(tmp_path):
    missing = str(tmp_path / "none")
    with pytest.raises(OSError) as caught:
        walked(missing)
    assert caught.value.filename == missing
    assert win32.winerror(caught.value) == win32.ERROR_FILE_NOT_FOUND


@pytest.fixture
def deep(tmp_path):
    path = extended_path(str(tmp_path))
    for _ in range(6):
        path = os.path.join(path, "x" * 60)
        os.mkdir(path)
    return str(tmp_path)


def test_paths_longer_than_260_characters_open(deep):
    assert len(granted_tree.read_tree(deep).nodes) == 7


@pytest.mark.real_windows(reason="it does not return the final path of such a handle")
def test_a_walk_finds_paths_longer_than_260_characters(deep):
    assert len(walked(deep)) == 7


OPEN = "D:(A;;GA;;;WD)"


def test_a_released_mutex_is_free():
    for _ in range(2):
        with win32_files.own_mutex("Local\\corral-test", OPEN):
            pass


HELD = """
import sys
from corral.abi import win32_files
with win32_files.own_mutex("Local\\\\corral-test-held", "D:(A;;GA;;;WD)"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_mutex_of_a_killed_process_is_free():
    """Check that the mutex is free after its owner was killed. While the owner lives, other processes wait only for a
    limited time.
    """
    with subprocess.Popen(
        [sys.executable, "-c", HELD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline().strip() == b"held"
        with (
            pytest.raises(OSError, match="holds the mutex"),
            win32_files.own_mutex("Local\\corral-test-held", OPEN, timeout_ms=1),
        ):
            pass
        child.kill()
        child.wait()
    with win32_files.own_mutex("Local\\corral-test-held", OPEN):
        pass


CLAIMED = """
import sys
from corral.platforms.windows.files import journal
root = journal.Root(path="C:\\\\a", access="read", sid="S-1-15-3-1024-1", volume=1, file=2)
own = journal.create(sys.argv[1], "run", journal.Entry(profile="", roots=(root,)))
print("claimed", flush=True)
sys.stdin.read()
"""


def test_a_grant_counts_as_used_until_the_process_that_uses_it_ends(tmp_path):
    directory = str(tmp_path)
    argv = [sys.executable, "-c", CLAIMED, directory]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline().strip() == b"claimed"
        assert journal.is_used("S-1-15-3-1024-1", journal.living(directory))
        assert journal.dead(directory) == []
        child.kill()
        child.wait()
    assert journal.living(directory) == []
    (dead,) = journal.dead(directory)
    assert dead.entry.roots[0].path == "C:\\a"
    dead.end()
    assert os.listdir(directory) == []


def test_a_dead_runs_journal_is_removed_if_its_root_is_gone(tmp_path, tree):
    """Check that cleaning up after a dead run reports no error if its granted directory is gone."""
    directory = str(tmp_path / "journal")
    root = root_of(tree)
    journal.create(directory, "dead", journal.Entry(profile="", roots=(root,))).leave()
    os.rename(tree, str(tmp_path / "away"))
    assert undo.sweep(directory) == []
    assert os.listdir(directory) == []


def test_a_run_first_cleans_up_after_dead_runs(tmp_path):
    directory = str(tmp_path / "journal")
    journal.create(directory, "dead", journal.Entry(profile="", roots=())).leave()
    results = Results()
    claim = undo.Claim(directory=directory, run="own", profile="", roots=())
    claim.apply(results)
    assert os.listdir(directory) == ["own" + journal.SUFFIX]
    results.release()
    assert os.listdir(directory) == []


@pytest.mark.skipif(not wine(), reason="tests a host that ignores access lists")
def test_access_entries_that_windows_does_not_keep_are_an_error(tree):
    """Check that corral reports an error if an entry is missing after corral has set it. This
    happens under Wine, which has no access lists.
    """
    step = path_grants.Grants(roots=(root_of(tree),), directory=os.path.dirname(tree))
    step.apply(Results())
    with pytest.raises(OSError, match="no entry for this grant") as caught:
        step.verify(Results())
    assert caught.value.filename == extended_path(tree) or caught.value.filename == tree


def security(path):
    with granted_tree.open_object(path) as handle:
        return win32_security.read_security(handle.value)


def all_security(tree):
    return {path: security(path) for path, _ in walked(tree)}


@pytest.mark.real_windows(reason="it has Unix modes in place of access lists")
def test_entries_are_set_and_removed(tree, tmp_path):
    """Check that every file gets its exact access list back, and that corral's entries are also
    removed from new files.
    """
    before = all_security(tree)
    root = root_of(tree)
    step = path_grants.Grants(roots=(root,), directory=str(tmp_path / "journal"))
    results = Results()
    undo.Claim(directory=step.directory, run="r", profile="", roots=(root,)).apply(results)
    step.apply(results)
    step.verify(results)
    assert all(access_list.has_entry(raw, root.sid) for raw in all_security(tree).values())
    new = os.path.join(tree, "sub", "new")
    with open(new, "w") as file:
        file.write("x")
    assert access_list.has_entry(security(new), root.sid)
    results.release()
    assert not access_list.has_entry(security(new), root.sid)
    os.unlink(new)
    after = all_security(tree)
    assert {path: access_list.read(raw) for path, raw in after.items()} == {
        path: access_list.read(raw) for path, raw in before.items()
    }
    assert os.listdir(step.directory) == []


@pytest.mark.real_windows(reason="it has Unix modes in place of access lists")
def test_two_runs_share_the_entries_of_one_root(tree, tmp_path):
    """Check that the access list entries of a root stay until the last of two runs ends."""
    directory, root = str(tmp_path / "journal"), root_of(tree)
    both = [Results(), Results()]
    for number, results in enumerate(both):
        claim = undo.Claim(directory=directory, run=str(number), profile="", roots=(root,))
        claim.apply(results)
        path_grants.Grants(roots=(root,), directory=directory).apply(results)
    both[0].release()
    assert access_list.has_entry(security(tree), root.sid)
    both[1].release()
    assert not access_list.has_entry(security(tree), root.sid)


@pytest.mark.real_windows(reason="it has Unix modes in place of access lists")
def test_a_crash_is_cleaned_up_by_the_next_run(tree, tmp_path):
    directory, root = str(tmp_path / "journal"), root_of(tree)
    crashed = journal.create(directory, "crashed", journal.Entry(profile="", roots=(root,)))
    path_grants.set_entries(root, path_grants.Exceptions(), kept=False)
    crashed.leave()  # the journal is unlocked, as after a crash
    assert access_list.has_entry(security(tree), root.sid)
    results = Results()
    undo.Claim(directory=directory, run="next", profile="", roots=()).apply(results)
    assert not access_list.has_entry(security(tree), root.sid)
    results.release()


@pytest.mark.real_windows(reason="it has Unix modes in place of access lists")
def test_kept_entries_stay_until_they_are_cleaned(tree, tmp_path):
    directory, root = str(tmp_path / "journal"), root_of(tree)
    results = Results()
    claim = undo.Claim(directory=directory, run="r", profile="", roots=(root,), keep=True)
    claim.apply(results)
    path_grants.Grants(roots=(root,), directory=directory, keep=True).apply(results)
    results.release()
    assert access_list.has_entry(security(tree), root.sid)
    assert undo.clean(directory) == ([tree], [])
    assert not access_list.has_entry(security(tree), root.sid)
    assert journal.kept(directory) == ()


READ = "\ntry:\n    answer = open(sys.argv[1]).read()\nexcept OSError as error:\n    answer = error.__class__.__name__\n"
WRITE = "\ntry:\n    open(sys.argv[1], 'w').write('changed')\n    answer = 'written'\nexcept OSError as error:\n    answer = error.__class__.__name__\n"


@pytest.mark.real_windows
def test_a_target_reads_only_its_grants(corral, tree, tmp_path):
    file, outside = os.path.join(tree, "sub", "file.txt"), str(tmp_path / "outside.txt")
    with open(outside, "w") as made:
        made.write("secret")
    assert corral.outside(READ, outside) == "secret"
    assert corral.inside(READ, file) == "PermissionError"
    assert corral.inside(READ, file, flags=("--read", tree)) == "x"
    assert corral.inside(READ, outside, flags=("--read", tree)) == "PermissionError"
    assert corral.inside(WRITE, file, flags=("--read", tree)) == "PermissionError"


@pytest.mark.real_windows
def test_a_target_writes_only_its_grants(corral, tree):
    file = os.path.join(tree, "sub", "file.txt")
    assert corral.inside(WRITE, file, flags=("--write", tree)) == "written"
    with open(file) as found:
        assert found.read() == "changed"


@pytest.mark.real_windows
def test_a_granted_directory_of_the_servers_project_is_used_in_place(corral, tmp_path):
    """Check that the server runs from a copy of its project, and that the granted directory in the project is not
    copied.
    """
    project, data = tmp_path / "project", tmp_path / "project" / "data"
    data.mkdir(parents=True)
    (project / "pyproject.toml").touch()
    (project / "main.py").write_text(
        "import os, sys\nopen(sys.argv[1], 'w').write(os.getcwd())\nprint(__file__)\n"
    )
    said = data / "said"
    done = corral.run(
        *(PYTHON, str(project / "main.py"), str(said)),
        flags=("--write", str(data)),
        cwd=str(data),
    )
    assert done.returncode == 0, done.stderr
    assert said.read_text() == str(data)
    assert not done.stdout.decode().startswith(str(tmp_path))


PLANT = """
import _winapi
try:
    _winapi.CreateJunction(sys.argv[1], sys.argv[2])
    answer = os.listdir(sys.argv[2])
except OSError as error:
    answer = error.__class__.__name__
"""


@pytest.mark.real_windows
def test_a_junction_planted_by_the_target_gives_no_access(corral, tree, tmp_path):
    """Check that the target cannot follow a junction that it has made, and that the next run
    refuses the tree.
    """
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("x")
    planted = os.path.join(tree, "planted")
    assert corral.outside(
        PLANT, str(tmp_path / "outside"), os.path.join(str(tmp_path), "control")
    ) == ["secret"]
    assert (
        corral.inside(PLANT, str(tmp_path / "outside"), planted, flags=("--write", tree))
        == "PermissionError"
    )
    if os.path.lexists(planted):
        done = corral.run(PYTHON, "-c", "pass", flags=("--write", tree))
        assert done.returncode == 125
        assert b"planted" in done.stderr
