"""Test that corral finds the user's home and refuses directories that others can write to. Check
that no code makes a directory with mode 0o700 on Windows.
"""

from __future__ import annotations

import ast
import os
import pathlib
import sys

import pytest

from corral import directories
from corral.errors import SandboxError

NAME = "USERPROFILE" if sys.platform == "win32" else "HOME"
ELSEWHERE = os.path.abspath("elsewhere")


@pytest.fixture
def recorded(monkeypatch):
    """Return the home directory from the user database. `expanduser` would return the value of HOME
    instead.
    """
    if sys.platform == "win32":
        monkeypatch.setenv("HOMEDRIVE", "C:")
        monkeypatch.setenv("HOMEPATH", "\\Users\\recorded")
        return "C:\\Users\\recorded"
    import pwd

    return pwd.getpwuid(os.getuid()).pw_dir


@pytest.mark.parametrize("value", ["", "relative", "~", None])
def test_a_home_that_is_not_an_absolute_path_is_looked_up(monkeypatch, recorded, value):
    environment = {} if value is None else {NAME: value}
    if value is not None:
        monkeypatch.setenv(NAME, value)
    assert directories.home_directory(environment) == recorded
    assert directories.home_directory({NAME: ELSEWHERE}) == ELSEWHERE


def test_a_user_without_a_home_gets_an_error(monkeypatch):
    monkeypatch.setattr(directories, "recorded_home", lambda: "")
    with pytest.raises(SandboxError, match=f"{NAME} is not an absolute path") as caught:
        directories.home_directory({NAME: ""})
    assert NAME in str(caught.value.hint)
    assert directories.home_directory({NAME: ELSEWHERE}) == ELSEWHERE


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
def test_a_directory_that_others_can_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    directories.refuse_shared(str(tmp_path), os.lstat(tmp_path))
    with pytest.raises(SandboxError, match="only you can write"):
        directories.refuse_shared(str(tmp_path), os.lstat(tmp_path), 0o077)
    for mode in (0o775, 0o757):
        tmp_path.chmod(mode)
        with pytest.raises(SandboxError, match="only you can write"):
            directories.refuse_shared(str(tmp_path), os.lstat(tmp_path))
    (tmp_path / "file").touch(mode=0o600)
    assert directories.is_private(os.lstat(tmp_path / "file"))
    with pytest.raises(SandboxError, match="not a directory"):
        directories.refuse_shared(str(tmp_path / "file"), os.lstat(tmp_path / "file"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
@pytest.mark.parametrize(("caller", "typed"), [(0, "sudo -H corral"), (1001, "sudo chown -R 1001")])
def test_root_gets_no_hint_to_take_over_a_users_directory(tmp_path, monkeypatch, caller, typed):
    found = os.stat_result((0o40700, 0, 0, 1, 1002, 1002, 0, 0, 0, 0))
    monkeypatch.setattr(os, "geteuid", lambda: caller)
    with pytest.raises(SandboxError) as refused:
        directories.refuse_shared(str(tmp_path), found)
    assert refused.value.hint is not None
    assert typed in refused.value.hint
    assert ("chown" in refused.value.hint) == bool(caller)


MAKERS = {"mkdir", "makedirs"}
PRIVATE = 0o700
TEMPORARY = {"mkdtemp", "TemporaryDirectory"}
UNIX_ALONE = ("platforms/linux/", "platforms/macos/", "platforms/posix/")


def private_directories(code: str) -> list[int]:
    """Return the numbers of the lines in which the source makes a directory with mode 0o700."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        modes = [word.value for word in node.keywords if word.arg == "mode"]
        # Take every positional argument for a mode. One of them is the path, but a path is never
        # equal to PRIVATE.
        modes += node.args if name in MAKERS else []
        values = [mode.value for mode in modes if isinstance(mode, ast.Constant)]
        if name in TEMPORARY or (name in MAKERS and PRIVATE in values):
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("os.mkdir(path, 0o700)", 1),
        ("os.makedirs(path, mode=0o700, exist_ok=True)", 1),
        ("path.parent.mkdir(0o700)", 1),
        ("tempfile.TemporaryDirectory()", 1),
        ("from tempfile import mkdtemp; mkdtemp()", 1),
        ("os.mkdir(path)", 0),
        ("os.makedirs(path, mode=0o755)", 0),
        ("os.chmod(path, 0o700)", 0),  # chmod does not change access lists on Windows
    ],
)
def test_the_search_of_the_next_test_finds_directories_with_mode_0700(code, found):
    assert len(private_directories(code)) == found


def test_no_code_makes_a_directory_with_mode_0700_on_windows():
    """Find directories that are made with mode 0o700, in all code that may run on Windows.

    On Windows, Python gives such a directory an access list for its owner. If an elevated process
    makes the directory, the same user without elevation gets no access, and neither do containers.
    So only `make_private_directory` may use this mode, and only on other systems.
    """
    folder = pathlib.Path(directories.__file__).parent
    found = {
        name: private_directories(path.read_text(encoding="utf-8"))
        for path in folder.rglob("*.py")
        if not (name := path.relative_to(folder).as_posix()).startswith(UNIX_ALONE)
    }
    assert [name for name, lines in found.items() if lines] == ["abi/private_directory.py"]
    assert len(found["abi/private_directory.py"]) == 1
