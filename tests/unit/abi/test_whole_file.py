"""Test that a file is replaced as a whole, and that a temporary file is removed only if the process
that wrote it is dead.
"""

from __future__ import annotations

import os
import sys

import pytest

from corral.abi.private_directory import create_locked
from corral.abi.whole_file import ENDING, discard_leftovers, replace_file

posix = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX locks")


def names(directory):
    return sorted(os.listdir(directory))


def test_the_new_content_replaces_the_old_file(tmp_path):
    path = tmp_path / "file"
    for content in (b"old", b"new and longer", b""):
        replace_file(str(path), content)
        assert path.read_bytes() == content
        assert names(tmp_path) == ["file"]


@posix
def test_a_new_file_is_private_and_an_old_one_keeps_its_mode(tmp_path):
    path = tmp_path / "file"
    replace_file(str(path), b"1")
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    replace_file(str(path), b"2", like=path.stat())
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failed_check_leaves_the_old_file_unchanged(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail():
        raise ValueError

    with pytest.raises(ValueError):
        replace_file(str(path), b"new", check=fail)
    assert (path.read_bytes(), names(tmp_path)) == (b"old", ["file"])


def test_a_disk_that_writes_a_part_at_a_time_gets_the_whole_file(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    replace_file(str(tmp_path / "file"), b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_the_next_writer_removes_what_a_dead_one_left(tmp_path):
    dead = tmp_path / f".file.0123456789ab{ENDING}"
    dead.write_bytes(b"secret")
    living = create_locked(str(tmp_path / f".file.ba9876543210{ENDING}"))
    replace_file(str(tmp_path / "file"), b"")
    assert names(tmp_path) == [f".file.ba9876543210{ENDING}", "file"]
    os.close(living)


@posix
def test_only_temporary_files_of_dead_writers_are_removed(tmp_path):
    dead, other = tmp_path / f".file.0123456789ab{ENDING}", tmp_path / "notes.txt"
    dead.write_bytes(b"secret")
    other.write_bytes(b"")
    link = tmp_path / f"link{ENDING}"
    link.symlink_to(other)
    living = create_locked(str(tmp_path / f".file.ba9876543210{ENDING}"))
    replace_file(str(tmp_path / "another"), b"")
    left = [f".file.ba9876543210{ENDING}", "another", link.name, "notes.txt"]
    assert names(tmp_path) == sorted(left)
    os.close(living)
    discard_leftovers(str(tmp_path))
    assert names(tmp_path) == sorted(left[1:])


def test_a_directory_that_cannot_be_listed_has_no_leftovers(tmp_path):
    discard_leftovers(str(tmp_path / "absent"))
