"""Test directories that only the current user can access."""

from __future__ import annotations

import os
import stat
import sys

import pytest

from corral.abi import private_directory, win32_files, win32_token
from corral.abi.private_directory import make_private_directory
from corral.abi.win32 import ERROR_ACCESS_DENIED, ERROR_ALREADY_EXISTS, Handle
from corral.abi.win32_security import parse_sid

USER = "S-1-5-21-1-2-3-1001"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
def test_a_private_directory_has_mode_0700_on_posix(tmp_path):
    path = tmp_path / "a" / "b"
    make_private_directory(str(path))
    make_private_directory(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.fixture
def windows(monkeypatch):
    """Imitate Windows with the user USER. Return a list that collects the path and the access list
    of each new directory.
    """
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(private_directory.sys, "platform", "win32")
    monkeypatch.setattr(Handle, "close", lambda self: self.detach() if self._value else None)
    monkeypatch.setattr(win32_token, "own_token", lambda _access: Handle(1))
    monkeypatch.setattr(win32_token, "token_user", lambda _token: parse_sid(USER))
    monkeypatch.setattr(
        win32_files, "create_directory", lambda path, security: asked.append((path, security))
    )
    return asked


def test_the_access_list_of_a_private_directory_names_the_user_and_not_its_owner(windows, tmp_path):
    """Check that the access list names the user and not the directory's owner. If an elevated
    process makes a directory, its owner is the administrators' group, so without elevation the user
    would have no access.
    """
    make_private_directory(str(tmp_path / "above" / "own"))
    assert windows == [
        (str(tmp_path / "above" / "own"), f"D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;{USER})")
    ]
    assert os.path.isdir(tmp_path / "above")


@pytest.mark.parametrize(
    ("code", "there", "fails"),
    [
        (ERROR_ALREADY_EXISTS, "directory", False),
        (ERROR_ALREADY_EXISTS, "file", True),
        (ERROR_ACCESS_DENIED, "", True),
    ],
)
def test_errors_of_createdirectory_become_oserrors(
    windows, monkeypatch, tmp_path, code, there, fails
):
    path = tmp_path / "own"
    if there:
        path.mkdir() if there == "directory" else path.touch()

    def refuse(path: str, _security: str) -> None:
        error = OSError(0, "refused", path)
        error.winerror = code
        raise error

    monkeypatch.setattr(win32_files, "create_directory", refuse)
    if fails:
        with pytest.raises(OSError, match="refused"):
            make_private_directory(str(path))
    else:
        make_private_directory(str(path))


@pytest.mark.skipif(os.name == "nt", reason="Windows waits for a lock, and targets share no files")
@pytest.mark.timeout(20)
def test_a_lock_of_another_program_is_an_error(tmp_path, monkeypatch):
    import fcntl

    path, taken, make = str(tmp_path / "new"), [], os.open

    def make_and_lose(*words):
        fd = make(*words)
        taken.append(make(path, os.O_RDWR))  # imitate a target that locks the new file
        fcntl.flock(taken[0], fcntl.LOCK_EX)
        return fd

    monkeypatch.setattr(private_directory, "MAX_LOCK_TRIES", 3)
    # Sanity check: the file is created if no other process locks it.
    os.close(private_directory.create_locked(path))
    os.unlink(path)
    monkeypatch.setattr(os, "open", make_and_lose)
    with pytest.raises(BlockingIOError, match="another process holds the lock"):
        private_directory.create_locked(path)
    os.close(*taken)
    assert os.listdir(tmp_path) == []
