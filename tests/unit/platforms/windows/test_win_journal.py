"""Test the journal of a run, which lists what has to be undone after the run.

A journal that is truncated at any byte must be read as complete or as empty. The journal stays
locked as long as its run lives.
"""

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import corral
from corral.platforms.windows.files import journal
from corral.platforms.windows.files.access_list import grant_sid

texts = st.text(st.characters(codec="utf-8"), max_size=40)
roots = st.builds(
    lambda path, access, volume, file: journal.Root(
        path=path, access=access, sid=grant_sid(path, access), volume=volume, file=file
    ),
    texts,
    st.sampled_from(["read", "write"]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**128 - 1),
)
entries = st.builds(
    lambda profile, some: journal.Entry(profile=profile, roots=tuple(some)),
    texts,
    st.lists(roots, max_size=4, unique_by=lambda root: root.sid),
)


def root(path="C:\\data", access="write"):
    return journal.Root(path=path, access=access, sid=grant_sid(path, access), volume=7, file=11)


def entry(*some, profile="corral-x"):
    return journal.Entry(profile=profile, roots=some)


@given(entries)
def test_a_journal_is_written_and_read(one):
    assert journal.decode(journal.encode(one)) == one


@given(entries, st.data())
def test_a_truncated_journal_is_empty(one, data):
    """Truncate a journal at a random byte. It must be read as empty. Nothing has to be undone then,
    because corral changes access lists only after the journal is complete.
    """
    raw = journal.encode(one)
    assert journal.decode(raw[: data.draw(st.integers(0, len(raw) - 1))]) is None


def test_a_journal_truncated_after_some_grants_were_released_keeps_the_others():
    one = entry(root("C:\\a"), root("C:\\b"), root("C:\\c"))
    raw = journal.encode(one)
    whole = raw + b"".join(b"- " + some.sid.encode() + b"\n" for some in one.roots[:2])
    for at in range(len(whole) + 1):
        found = journal.decode(whole[:at])
        if at < len(raw):
            assert found is None
        else:
            done = whole[len(raw) : at].count(b"\n")
            # Only a complete "- SID" line removes a root from the journal. If the line is
            # truncated, the root stays, and corral still cleans it up.
            assert found.roots == one.roots[done:], at
            assert found.profile == one.profile


@given(entries, st.data())
def test_a_changed_journal_counts_as_empty(one, data):
    raw = bytearray(journal.encode(one))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    found = journal.decode(bytes(raw))
    assert found is None or found == one


@given(st.binary(max_size=300))
def test_any_bytes_are_a_journal_or_empty(raw):
    assert journal.decode(raw) is None


def test_a_grant_counts_as_used_only_while_a_live_run_holds_it(tmp_path):
    directory = str(tmp_path / "journal")
    mine = journal.create(directory, "one", entry(root()))
    other = journal.create(directory, "two", entry(root(), root("C:\\b")))
    assert journal.is_used(root().sid, mine.others())
    other.drop(root())
    assert not journal.is_used(root().sid, mine.others())
    assert journal.is_used(root("C:\\b").sid, mine.others())
    assert journal.dead(directory) == []
    other.leave()
    assert mine.others() == []
    (dead,) = journal.dead(directory)
    assert dead.entry == entry(root("C:\\b"))
    dead.end()
    mine.end()
    assert os.listdir(directory) == []


def test_only_one_process_cleans_up(tmp_path):
    directory = str(tmp_path)
    journal.create(directory, "one", entry(root())).leave()
    (dead,) = journal.dead(directory)
    assert journal.dead(directory) == []
    # The root's access list entries count as in use until the cleanup drops the root.
    assert journal.living(directory) == [entry(root())]
    dead.drop(root())
    assert journal.living(directory) == [entry()]
    dead.leave()
    assert len(journal.dead(directory)) == 1


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from corral.platforms.windows.files import journal
from corral.platforms.windows.files.access_list import grant_sid
made = tuple(
    journal.Root(path=path, access="write", sid=grant_sid(path, "write"), volume=1, file=2) for path in ("C:\\\\a", "C:\\\\b")
)
limit = int(sys.argv[3])
write = os.write
def torn(fd, raw):
    "Write `limit` bytes in all, then kill this process."
    global limit
    done = write(fd, raw[:limit])
    limit -= done
    if not limit:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
os.write = torn
own = journal.create(sys.argv[2], "run", journal.Entry(profile="p", roots=made))
own.drop(made[0])
own.end()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kills by a signal")
def test_a_run_killed_while_writing_leaves_a_complete_or_empty_journal(tmp_path):
    """Kill a real process after it has locked its journal and written some bytes. The journal must
    then be unlocked, and be read as complete or as empty.
    """
    source = os.path.dirname(os.path.dirname(corral.__file__))
    made = [
        journal.Root(path=path, access="write", sid=grant_sid(path, "write"), volume=1, file=2)
        for path in ("C:\\a", "C:\\b")
    ]
    first = len(journal.encode(journal.Entry(profile="p", roots=tuple(made))))
    for limit in (1, first // 2, first - 1, first, first + 5, first + len(made[0].sid) + 3):
        directory = str(tmp_path / str(limit))
        done = subprocess.run(
            [sys.executable, "-c", KILLED, source, directory, str(limit)], check=False
        )
        assert done.returncode == -signal.SIGKILL
        (dead,) = journal.dead(directory)
        if limit < first:
            assert dead.entry is None
        else:
            left = made[1:] if limit > first + 5 else made
            assert dead.entry == journal.Entry(profile="p", roots=tuple(left))
        dead.end()
        assert os.listdir(directory) == []


def test_kept_grants_are_read_back(tmp_path):
    directory = str(tmp_path)
    journal.keep(directory, root())
    journal.keep(directory, root())
    journal.keep(directory, root("C:\\b"))
    assert set(journal.kept(directory)) == {root(), root("C:\\b")}
    assert journal.is_used(root().sid, journal.living(directory))
    assert journal.dead(directory) == []
    journal.forget(directory, root())
    assert journal.kept(directory) == (root("C:\\b"),)


KILLED_KEEPING = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from corral.platforms.windows.files import journal
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
journal.keep(sys.argv[2], journal.Root(path="C:\\\\a", access="write", sid="S-1-1", volume=1, file=2))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kills by a signal")
def test_the_file_of_a_process_that_was_killed_while_it_kept_a_grant_is_removed(tmp_path):
    source = os.path.dirname(os.path.dirname(corral.__file__))
    directory = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", KILLED_KEEPING, source, directory], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(os.listdir(directory)) == 1  # make sure that the process left a file
    assert (journal.dead(directory), journal.kept(directory)) == ([], ())
    assert os.listdir(directory) == []


def test_a_missing_directory_has_no_journals(tmp_path):
    missing = str(tmp_path / "none")
    assert (journal.dead(missing), journal.living(missing), journal.kept(missing)) == ([], [], ())


def test_a_journal_that_is_too_long_is_refused(tmp_path):
    """Check that no journal longer than MAX_SIZE is written. corral reads only that many bytes, so
    a longer journal would count as empty.
    """
    some = [root(f"C:\\{'x' * 30_000}{number}") for number in range(40)]
    journal.create(str(tmp_path), "control", entry(*some[:20])).end()
    with pytest.raises(OSError, match="too many grants"):
        journal.create(str(tmp_path), "run", entry(*some))
    assert list(tmp_path.iterdir()) == []
