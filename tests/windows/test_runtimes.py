"""Test on a real disk how a command's program is found, and how runtimes and servers are copied."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from corral.abi import win32, win32_security
from corral.errors import CommandError, SandboxError
from corral.plan.model import Results
from corral.platforms.windows.files import access_list, file_trees
from corral.platforms.windows.files import granted_tree as trees
from corral.platforms.windows.runtime_copies import store as runtimes
from corral.programs import windows_resolve
from corral.programs.model import Program
from corral.servers.store import tree
from windows.conftest import PYTHON


@pytest.fixture(autouse=True)
def no_handle_is_left():
    before = win32.open_handles()
    yield
    assert win32.open_handles() == before


def resolve(*argv, cwd, variables=None, subprocess=False):
    return windows_resolve.resolve(
        argv,
        environment=variables or dict(os.environ),
        cwd=str(cwd),
        home="C:\\users\\nobody",
        subprocess=subprocess,
    )


@pytest.fixture
def server(tmp_path):
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv" / "main.py").write_text("import sys\nprint('served', sys.argv[1])\n")
    (tmp_path / "srv" / "pyproject.toml").write_text("")
    return tmp_path / "srv"


def test_the_running_python_is_found_on_path(server):
    variables = {**os.environ, "PATH": os.path.dirname(PYTHON)}
    found = resolve("python", "main.py", cwd=server, variables=variables)
    assert os.path.samefile(found.path, PYTHON)
    assert found.argv[1] == str(server / "main.py")
    assert str(server) in found.reads
    assert os.path.dirname(found.real) in found.reads


def test_the_copy_of_the_running_python_has_only_the_standard_library():
    def installed(trees):
        names = [name.lower() for tree in trees for name, _, _ in tree.listing.files]
        assert "lib\\os.py" in names
        return any(name.startswith("lib\\site-packages\\") for name in names)

    found = resolve(runtimes.own_interpreter(), cwd=os.getcwd())
    whole = runtimes.plan(runtimes.without_projects(found), directory="C:\\store")
    assert installed(whole.trees)  # Sanity check: a server's copy includes site-packages
    assert not installed(runtimes.plan_own_interpreter("C:\\users\\nobody").trees)


def test_a_program_in_the_current_directory_is_not_found(server):
    (server / "tool.exe").write_bytes(b"MZ")
    with pytest.raises(CommandError, match="not found on PATH"):
        resolve("tool", cwd=server)
    assert resolve(".\\tool", cwd=server).path == str(server / "tool.exe")


def test_npms_batch_file_is_resolved_to_its_script(server, tmp_path):
    binaries = tmp_path / "node_modules" / ".bin"
    binaries.mkdir(parents=True)
    (tmp_path / "node_modules" / "x").mkdir()
    (tmp_path / "node_modules" / "x" / "cli.js").write_text("")
    (binaries / "node.exe").write_bytes(b"MZ")
    line = '"%~dp0\\node.exe"  "%~dp0\\..\\x\\cli.js" %*'
    (binaries / "x.cmd").write_bytes(
        f'@IF EXIST "%~dp0\\node.exe" (\r\n  {line}\r\n) ELSE (\r\n  {line.replace("%~dp0", "%~dp0", 1)}\r\n)\r\n'.encode()
    )
    found = resolve(str(binaries / "x"), "--flag", cwd=tmp_path)
    assert found.argv == (
        str(binaries / "node.exe"),
        str(tmp_path / "node_modules" / "x" / "cli.js"),
        "--flag",
    )


SHARE = "\\\\host.invalid\\share"
LEADING_AWAY = {
    "environment": {"pyvenv.cfg": f"home = {SHARE}\n", "python.exe": "MZ"},
    "slashes": {"pyvenv.cfg": "home = //host.invalid/share\n", "python.exe": "MZ"},
    "script": {"python-script.py": f"#!{SHARE}\\python.exe\n", "python.exe": "MZ"},
    "scoop": {"python.shim": f'path = "{SHARE}\\python.exe"\n', "python.exe": "MZ"},
    "batch": {"python.cmd": f'@"{SHARE}\\node.exe" "{SHARE}\\cli.js" %*\r\n'},
    "batch, its script": {"python.cmd": f'@"{sys.executable}" "{SHARE}\\cli.py" %*\r\n'},
    "editable": {"Lib\\site-packages\\x.pth": f"{SHARE}\\project\r\n", "python.exe": "MZ"},
}


@pytest.mark.parametrize("way", LEADING_AWAY)
def test_network_paths_in_untrusted_files_are_not_opened(way, tmp_path, monkeypatch):
    """Check that network paths are not opened, because Windows would send the user's credentials to
    the server that a path names.
    """
    for name, text in LEADING_AWAY[way].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    asked = []
    for name in ("lstat", "stat", "listdir", "scandir", "readlink"):
        monkeypatch.setattr(os, name, watched(asked, getattr(os, name)))
    monkeypatch.setattr("builtins.open", watched(asked, open))
    monkeypatch.setattr(os.path, "realpath", watched(asked, os.path.realpath))
    try:
        resolve(str(tmp_path / "python"), cwd=tmp_path)
    except CommandError as refused:
        assert "does not exist" in str(refused)  # noqa: PT017 - corral does not refuse all of them
    assert any(str(tmp_path) in path for path in asked)  # Sanity check: local paths are opened
    assert [path for path in asked if "host.invalid" in path] == []


def watched(asked, real):
    def ask(path, *arguments, **options):
        asked.append(str(path))
        return real(path, *arguments, **options)

    return ask


def planned(server, directory):
    program = Program(
        path=sys.executable,
        argv=(sys.executable, str(server / "main.py"), "it"),
        reads=(str(server),),
        why=("the server",),
        search=("x",),
        real=sys.executable,
    )
    return runtimes.plan(program, directory=str(directory))


@pytest.fixture
def results():
    made = Results()
    yield made
    made.release()


def test_a_copied_server_runs(server, tmp_path, results):
    """Start the copied server without a container."""
    store = planned(server, tmp_path / "store")
    store.apply(results)
    copied = store.program.argv[1]
    assert copied.startswith(str(tmp_path / "store"))
    done = subprocess.run(
        [sys.executable, *store.program.argv[1:]], capture_output=True, check=True
    )
    assert done.stdout.strip() == b"served it"
    assert file_trees.list_files(store.trees[0].staged).files == store.trees[0].listing.files


def test_a_second_run_copies_nothing(server, tmp_path, results):
    store = planned(server, tmp_path / "store")
    store.apply(results)
    place = store.program.argv[1]
    with open(place, "w") as file:
        file.write("marked")
    planned(server, tmp_path / "store").apply(results)
    with open(place) as file:
        assert file.read() == "marked"


def test_a_half_made_copy_is_made_again(server, tmp_path, results):
    store = planned(server, tmp_path / "store")
    store.apply(results)
    results.release()
    os.unlink(runtimes.mark_path(store.trees[0]))
    os.unlink(store.program.argv[1])
    with pytest.raises(OSError, match=r"not complete|no entry"):
        store.verify(results)
    store.apply(results)
    assert os.path.exists(store.program.argv[1])


def test_a_copy_in_use_is_not_removed(server, tmp_path, results):
    store, other = planned(server, tmp_path / "store"), Results()
    (room,) = [tree.directory for tree in store.trees]
    store.apply(results)
    store.apply(other)
    # corral keeps installed packages in these two directories of the store
    for name in ("trees", "entries"):
        (tmp_path / "store" / name).mkdir()
    other.release()
    assert runtimes.collect(str(tmp_path / "store")) == []
    assert os.path.exists(store.program.argv[1])
    results.release()
    assert runtimes.collect(str(tmp_path / "store")) == [room]
    assert sorted(os.listdir(tmp_path / "store")) == ["entries", "trees"]
    store.apply(results)
    assert os.path.exists(store.program.argv[1])


def test_an_unfinished_copy_of_a_dead_run_is_removed(corral, tmp_path):
    room = tmp_path / ".corral" / "cache" / "store" / ("0a" * 16)
    room.mkdir(parents=True)
    (room / "half").touch()
    variables = {**os.environ, "USERPROFILE": str(tmp_path)}
    done = corral("cache", "gc", "--json", env=variables)
    assert json.loads(done.stdout) == {"removed": [str(room)]}
    assert not room.exists()


def test_a_changed_source_is_copied_again(server, tmp_path, results):
    first = planned(server, tmp_path / "store")
    first.apply(results)
    (server / "main.py").write_text("print('other')\n")
    with pytest.raises(OSError, match="changed"):
        stale = planned(server, tmp_path / "store2")
        (server / "main.py").write_text("print('another one')\n")
        stale.apply(results)
    second = planned(server, tmp_path / "store")
    assert second.trees[0].directory != first.trees[0].directory


def test_an_older_copy_is_removed_once_no_run_uses_it(server, tmp_path, results):
    """Check that old copies are removed, because a copy of Python needs hundreds of megabytes, and
    corral makes a new copy for each newly installed package.
    """
    store, running = tmp_path / "store", Results()
    (server / "data").mkdir()
    first = planned(server, store)
    first.apply(running)
    (kept,) = runtimes.plan(first.program, directory=str(store), without=("data",)).trees
    runtimes.make_copy(kept)  # `data` is left out, so this is not an older version of `first`
    rooms = [first.trees[0].directory, kept.directory]
    for text in ("two", "three"):
        (server / "main.py").write_text(text)
        new = planned(server, store)
        new.apply(results)
        results.release()
        rooms.append(new.trees[0].directory)
        running.release()  # the run of the first copy ends only now
        there = [os.path.exists(room) for room in rooms]
        assert there == ([True, True, True] if text == "two" else [False, True, False, True])


@pytest.mark.real_windows(reason="it has Unix modes in place of access lists")
def test_a_copy_can_be_read_by_its_capability_only(server, tmp_path, results):
    store = planned(server, tmp_path / "store")
    store.apply(results)
    store.verify(results)
    with trees.open_object(store.program.argv[1]) as handle:
        raw = win32_security.read_security(handle.value)
    (entry,) = [
        one for one in access_list.read(raw).entries if access_list.is_entry_of(one, store.sids[0])
    ]
    mask = int.from_bytes(entry[4:8], "little")
    assert mask & access_list.RIGHTS["read"] == access_list.RIGHTS["read"]
    assert not mask & 0x116


@pytest.mark.real_windows(reason="it makes no junctions")
def test_only_links_to_files_of_a_copied_tree_are_followed(server, tmp_path):
    """Use a link to a file in the same tree. GitHub's runners have such a link from `python3.exe` to
    `python.exe`.
    """
    import _winapi

    try:
        os.symlink(server / "main.py", server / "alias.py")
    except OSError as error:
        pytest.skip(f"no link can be made here: {error}")
    listing = file_trees.list_files(str(server))
    assert listing.links == (("alias.py", "main.py"),)
    file_trees.copy(str(server), str(tmp_path / "copy"), listing)
    assert not (tmp_path / "copy" / "alias.py").is_symlink()
    assert (tmp_path / "copy" / "alias.py").read_text() == (server / "main.py").read_text()
    (tmp_path / "outside").mkdir()
    _winapi.CreateJunction(str(tmp_path / "outside"), str(server / "way"))
    with pytest.raises(file_trees.Unsuitable, match="path outside"):
        file_trees.list_files(str(server))


@pytest.mark.real_windows(reason="it makes no junctions")
def test_a_junction_in_a_package_counts_as_a_link_that_leads_out(tmp_path):
    """Use a junction, because every user may create one. It looks like a directory, but must count
    as a link.
    """
    import _winapi

    outside, package = tmp_path / "outside", tmp_path / "package"
    outside.mkdir()
    package.mkdir()
    (outside / "mine").write_text("before")
    _winapi.CreateJunction(str(outside), str(package / "way"))
    assert [path for path, _ in tree.walk(str(package))] == ["way"]
    with pytest.raises(SandboxError, match="path outside"):
        tree.check_tree(str(package))
    tree.make_read_only(str(package))
    # This would fail if `make_read_only` had followed the junction.
    (outside / "mine").write_text("after")
    tree.remove_tree(str(package))
    assert not package.exists()
    assert (outside / "mine").read_text() == "after"
