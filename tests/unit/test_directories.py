"""Where the user's files are, whatever the environment says."""

from __future__ import annotations

import os
import sys

import pytest

from corral import directories
from corral.errors import SandboxError

NAME = "USERPROFILE" if sys.platform == "win32" else "HOME"
ELSEWHERE = os.path.abspath("elsewhere")


@pytest.fixture
def recorded(monkeypatch):
    """What the system itself knows; Python's own expanduser would believe the variable."""
    if sys.platform == "win32":
        monkeypatch.setenv("HOMEDRIVE", "C:")
        monkeypatch.setenv("HOMEPATH", "\\Users\\recorded")
        return "C:\\Users\\recorded"
    import pwd

    return pwd.getpwuid(os.getuid()).pw_dir


@pytest.mark.parametrize("value", ["", "relative", "~", None])
def test_a_home_that_is_no_absolute_path_is_looked_up(monkeypatch, recorded, value):
    environment = {} if value is None else {NAME: value}
    if value is not None:
        monkeypatch.setenv(NAME, value)
    assert directories.home_directory(environment) == recorded
    assert directories.home_directory({NAME: ELSEWHERE}) == ELSEWHERE


def test_a_user_without_any_home_is_told_so(monkeypatch):
    monkeypatch.setattr(directories, "recorded_home", lambda: "")
    with pytest.raises(SandboxError, match=f"{NAME} names no directory") as caught:
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
