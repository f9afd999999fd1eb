"""Test run records: each record is a locked file, and `clean` uses only the user's own records."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import corral
from corral.abi import private_directory
from corral.platforms import run_records
from corral.record import replace

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="deletes open files, as POSIX allows")


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "USERPROFILE", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    path = run_records._directory()
    return type(tmp_path)(path)


@pytest.fixture
def swept():
    removed: list[str] = []

    def clean(path, _budget):
        removed.append(path)
        os.rmdir(path)

    clean.removed = removed
    return clean


def die(run):
    """Leave a record behind as a killed run does: the file exists, but is not locked."""
    os.close(run._fd)
    run._fd = -1


def test_a_live_run_is_listed_and_not_swept(place, swept, tmp_path):
    left = tmp_path / "left"
    left.mkdir()
    run = run_records.Run("1-a", residue=[str(left)], command=["cat", "two\nlines"])
    run.started(4321)
    (entry,) = run_records.live()
    assert (entry.name, entry.pid, entry.root) == ("1-a", os.getpid(), 4321)
    assert (entry.residue, entry.command) == ((str(left),), ("cat", "two lines"))
    assert run_records.sweep(swept) == swept.removed == []
    run.end()
    assert run_records.live() == []
    assert os.listdir(place) == []
    assert left.exists()  # `Run.end` removes only the record file


def test_a_dead_run_is_swept_and_not_listed(place, swept, tmp_path):
    left, gone = tmp_path / "left", tmp_path / "gone"
    left.mkdir()
    die(run_records.Run("1-a", residue=[str(left), str(gone)], command=[]))
    assert run_records.live() == []
    assert run_records.sweep(swept) == swept.removed == [str(left)]
    assert os.listdir(place) == []
    assert run_records.sweep(swept) == []


@POSIX
@pytest.mark.parametrize("alive", [True, False])
def test_only_the_process_of_a_live_record_is_ended(place, alive):
    """Check that corral does not end the process that a dead run's record names, because the pid
    may now belong to another process.
    """
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        run = run_records.Run("install-1", residue=(), command=["x"])
        (entry,) = run_records.live()
        holder = os.dup(run._fd) if alive else -1
        die(run)
        if alive:
            # Keep the record locked until `other` ends, as if `other` were the live run.
            threading.Thread(target=lambda: (other.wait(), os.close(holder))).start()
        assert run_records.end(replace(entry, pid=other.pid))
        other.communicate(b"\n")
    assert other.returncode == (-signal.SIGKILL if alive else 0)


def test_leftovers_that_cannot_be_removed_are_tried_again(place, swept, tmp_path):
    left = tmp_path / "left"
    left.mkdir()
    die(run_records.Run("1-a", residue=[str(left)], command=[]))
    assert run_records.sweep(lambda *_: None) == []
    assert os.listdir(place) == ["1-a"]
    assert run_records.sweep(swept) == [str(left)]
    assert os.listdir(place) == []


@POSIX
def test_a_record_is_complete_at_every_moment(place, tmp_path, monkeypatch):
    """Read the record just before it is rewritten. It must already be complete, because corral
    could be killed at this moment.
    """
    run = run_records.Run("1-a", residue=[str(tmp_path)], command=["x"])
    seen = []
    write = os.pwrite

    def look(fd, text, offset):
        seen.append((place / "1-a").read_bytes())
        return write(fd, text, offset)

    monkeypatch.setattr(os, "pwrite", look)
    run.started(7)
    assert str(tmp_path).encode() in seen[0]
    assert run_records.live()[0].root == 7
    run.end()


@POSIX
def test_a_run_without_its_record_ends_normally(place):
    run = run_records.Run("1-a", residue=[], command=[])
    (place / "1-a").unlink()
    run.end()
    run.end()
    assert os.listdir(place) == []


def test_a_second_run_with_the_name_of_a_live_run_has_no_record(place):
    first = run_records.Run("1-a", residue=[], command=["first"])
    second = run_records.Run("1-a", residue=[], command=["second"])
    second.started(7)
    assert [(entry.command, entry.root) for entry in run_records.live()] == [(("first",), 0)]
    second.end()
    assert [entry.command for entry in run_records.live()] == [("first",)]
    first.end()
    third = run_records.Run("1-a", residue=[], command=["third"])  # now the name is free again
    assert [entry.command for entry in run_records.live()] == [("third",)]
    third.end()


@POSIX
def test_a_record_that_is_removed_before_it_is_locked_is_written_again(place, swept, monkeypatch):
    """Remove the records of dead runs after a new record is created, but before it is locked. At
    this moment it looks like the record of a dead run, so it is removed too. corral must then write
    it again.
    """
    lock_soon = private_directory._lock_soon
    names = []

    def sweep_first(fd, path):
        if not names:
            names.append(os.listdir(place))
            run_records.sweep(swept)
            names.append(os.listdir(place))
        lock_soon(fd, path)

    monkeypatch.setattr(private_directory, "_lock_soon", sweep_first)
    run = run_records.Run("1-a", residue=[], command=["x"])
    assert names == [["1-a"], []]  # make sure that the sweep removed the first file
    assert [entry.command for entry in run_records.live()] == [("x",)]
    assert run_records.sweep(swept) == []
    assert os.listdir(place) == ["1-a"]
    run.end()


FULL = """
import resource, signal, sys
sys.path.insert(0, sys.argv[1])
from corral.platforms import run_records
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
run = run_records.Run("1-a", residue=[], command=["x"])
run.started(5)
print(run_records.live())
run.end()
"""


@POSIX
def test_a_full_disk_for_the_record_is_not_an_error(place):
    package = os.path.dirname(os.path.dirname(corral.__file__))
    done = subprocess.run(
        [sys.executable, "-c", FULL, package], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert os.listdir(place) == []


@pytest.mark.parametrize("kind", ["no parent", pytest.param("link", marks=POSIX), "directory"])
def test_a_missing_directory_for_the_record_is_not_an_error(place, kind):
    (place.parent if kind == "no parent" else place).mkdir(parents=True)
    if kind == "no parent":
        place.touch()
    elif kind == "link":
        (place / "1-a").symlink_to("/etc/passwd")
    else:
        (place / "1-a").mkdir()
    run = run_records.Run("1-a", residue=[], command=[])
    run.started(1)
    assert run_records.live() == []
    run.end()
    assert run_records.sweep(lambda *_: None) == []


@given(st.text(max_size=60))
def test_any_text_is_a_record_or_is_ignored(text):
    entry = run_records._parse("name", text)
    assert entry is None or entry.name == "name"


@given(
    residue=st.lists(
        st.text(st.characters(blacklist_characters="\n\0", codec="utf-8"), min_size=1)
    ),
    command=st.lists(st.text(st.characters(blacklist_characters="\n\0", codec="utf-8"))),
)
def test_the_values_of_a_record_are_read_as_they_were_written(residue, command):
    text = run_records.SEPARATOR.join(("1", "2", "3", str(len(residue)), *residue, *command))
    entry = run_records._parse("n", text)
    assert list(entry.residue) == residue
    assert list(entry.command) == command
