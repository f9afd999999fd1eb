"""Check what runs leave behind, in whatever order they start, end and die. Only two things may
remain: what a live run still uses, and what the user wants to keep.

The journals and locks are real. A set of SIDs replaces the access lists on disk, because other
tests check how entries are removed from access lists. A set of names replaces the profiles.
"""

import contextlib
import os
import sys
import tempfile
import types

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from corral.abi import win32, win32_security
from corral.plan.model import Results
from corral.platforms.windows import undo
from corral.platforms.windows.files import access_list, granted_tree, journal

ROOTS = tuple(
    journal.Root(
        path=f"C:\\{name}", access="write", sid=f"S-1-15-3-1024-{number}", volume=1, file=number
    )
    for number, name in enumerate("abc")
)


class Host:
    """A fake Windows with the two things that cleanup changes: entries in access lists, and
    profiles.
    """

    def __init__(self):
        self.entries = set()
        self.profiles = set()
        self.resisting = set()

    def withdraw(self, root):
        if root.sid in self.resisting:
            return [f"{root.path}: in the way"]
        self.entries.discard(root.sid)
        return []

    def delete(self, name):
        if name not in self.profiles:
            raise OSError(0, "not found", "DeleteAppContainerProfile", win32.ERROR_FILE_NOT_FOUND)
        self.profiles.discard(name)

    @contextlib.contextmanager
    def patched(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(granted_tree, "mutex", lambda _: contextlib.nullcontext())
            patch.setattr(undo, "withdraw", self.withdraw)
            patch.setattr(win32_security, "DeleteAppContainerProfile", self.delete)
            yield


class Runs(RuleBasedStateMachine):
    @initialize()
    def begin_with_nothing(self):
        self.directory = self.enter(tempfile.TemporaryDirectory())
        self.host = Host()
        self.enter(self.host.patched())
        self.alive = {}
        self.kept = set()
        self.count = 0

    def __init__(self):
        super().__init__()
        self.stack = contextlib.ExitStack()

    def enter(self, manager):
        return self.stack.enter_context(manager)

    def teardown(self):
        for results, _, _ in getattr(self, "alive", {}).values():
            results.release()
        self.stack.close()

    @rule(roots=st.sets(st.sampled_from(ROOTS), max_size=3), keep=st.booleans())
    def start(self, roots, keep):
        self.count += 1
        name = f"run{self.count}"
        results = Results()
        claim = undo.Claim(
            directory=self.directory,
            run=name,
            profile=name,
            roots=tuple(sorted(roots, key=lambda r: r.sid)),
            keep=keep,
        )
        claim.apply(results)
        self.host.profiles.add(name)
        self.host.entries |= {root.sid for root in roots}
        self.alive[name] = (results, roots, keep)

    @precondition(lambda self: getattr(self, "alive", None))
    @rule(data=st.data())
    def end(self, data):
        name = data.draw(st.sampled_from(sorted(self.alive)))
        results, roots, keep = self.alive.pop(name)
        results.release()
        if keep:
            self.kept |= {root.sid for root in roots}
        assert name not in self.host.profiles

    @precondition(lambda self: getattr(self, "alive", None))
    @rule(data=st.data())
    def die_and_be_swept(self, data):
        """Simulate the death of a run: the kernel unlocks its journal, and its memory is lost. Then
        let corral clean up after it.
        """
        name = data.draw(st.sampled_from(sorted(self.alive)))
        results, _, _ = self.alive.pop(name)
        results.get(undo.OpenClaim).journal.leave()
        assert undo.sweep(self.directory) == []
        assert name not in self.host.profiles

    @rule()
    def clean(self):
        done, problems = undo.clean(self.directory)
        assert problems == []
        in_use = {root.sid for _, roots, _ in self.alive.values() for root in roots}
        assert {root.sid for root in ROOTS if root.path in done} == self.kept - in_use
        self.kept = set()

    @invariant()
    def the_disk_has_what_is_wanted(self):
        if not hasattr(self, "alive"):
            return
        in_use = {root.sid for _, roots, _ in self.alive.values() for root in roots}
        assert self.host.entries == in_use | self.kept
        assert self.host.profiles == set(self.alive)


Runs.TestCase.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)
TestRuns = Runs.TestCase


def claimed(directory, name, *roots):
    return journal.create(directory, name, journal.Entry(profile=name, roots=roots))


@pytest.fixture(autouse=True)
def windows_codes(monkeypatch):
    """Imitate `winerror` on other systems, where OSError does not keep its fourth argument."""
    if sys.platform != "win32":
        monkeypatch.setattr(
            win32,
            "winerror",
            lambda error: win32.ERROR_FILE_NOT_FOUND if error.args[1] == "not found" else 5,
        )


def test_a_missing_profile_is_not_an_error(tmp_path):
    host = Host()
    with host.patched():
        assert undo.undo_run(claimed(str(tmp_path), "one"), keep=False) == []
    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_cannot_be_deleted_stays_in_the_journal(tmp_path, monkeypatch):
    def denied(name):
        raise OSError(0, "denied", "DeleteAppContainerProfile", win32.ERROR_ACCESS_DENIED)

    monkeypatch.setattr(win32_security, "DeleteAppContainerProfile", denied)
    assert undo.undo_run(claimed(str(tmp_path), "one"), keep=False) == [
        "AppContainer profile one: denied"
    ]
    assert len(journal.dead(str(tmp_path))) == 1


@pytest.mark.parametrize("told", [True, False], ids=["an error", "a success"])
def test_files_that_windows_leaves_in_a_profile_are_removed(tmp_path, monkeypatch, told):
    """Use a file that Windows cannot remove with the profile, because of its name. A target can
    choose this name. The removal fails, or reports success and leaves the file behind.
    """
    folder = tmp_path / "packages" / "one"
    (folder / "AC").mkdir(parents=True)
    (folder / "AC" / "odd.").touch()

    def delete(name):
        if told and folder.exists():
            raise OSError(0, "denied", "DeleteAppContainerProfile", win32.ERROR_ACCESS_DENIED)

    monkeypatch.setattr(win32_security, "DeleteAppContainerProfile", delete)
    monkeypatch.setattr(win32_security, "profile_folder", lambda _sid: str(folder / "AC"))
    journals = tmp_path / "journals"
    assert undo.undo_run(claimed(str(journals), "one"), keep=False) == []
    assert not folder.exists()
    assert list(journals.iterdir()) == []


def test_of_two_runs_that_end_at_once_the_second_removes_the_entries(tmp_path):
    """End two runs at once. A run does not remove entries that another run still uses, so the
    second run to end must remove them.
    """
    host, directory = Host(), str(tmp_path)
    host.entries.add(ROOTS[0].sid)
    with host.patched():
        first, second = claimed(directory, "one", ROOTS[0]), claimed(directory, "two", ROOTS[0])
        # The first run leaves the entries, because the second run still uses them. It drops its
        # claim to them, but its journal still exists.
        assert journal.is_used(ROOTS[0].sid, first.others())
        first.drop(ROOTS[0])
        assert undo.undo_run(second, keep=False) == []
        assert host.entries == set()
        assert undo.undo_run(first, keep=False) == []


def test_a_dead_run_is_cleaned_up_by_one_process(tmp_path):
    """End a run while another process cleans up after a dead run that used the same entries. The
    ending run must leave these entries, because the other process removes them.
    """
    host, directory = Host(), str(tmp_path)
    host.entries.add(ROOTS[0].sid)
    with host.patched():
        claimed(directory, "dead", ROOTS[0]).leave()
        (dead,) = journal.dead(directory)
        ending = claimed(directory, "ending", ROOTS[0])
        assert undo.undo_run(ending, keep=False) == []
        assert host.entries == {ROOTS[0].sid}
        assert undo.undo_run(dead, keep=False) == []
        assert host.entries == set()


def test_entries_that_cannot_be_removed_are_tried_again(tmp_path):
    host, directory = Host(), str(tmp_path)
    host.entries |= {root.sid for root in ROOTS}
    host.profiles.add("one")
    host.resisting.add(ROOTS[1].sid)
    with host.patched():
        assert undo.undo_run(claimed(directory, "one", *ROOTS), keep=False) == ["C:\\b: in the way"]
        assert ROOTS[1].sid in host.entries
        assert undo.sweep(directory) == ["C:\\b: in the way"]
        host.resisting.clear()
        assert undo.sweep(directory) == []
    assert host.entries == set()
    assert host.profiles == set()
    assert list(tmp_path.iterdir()) == []


def test_a_kept_grant_that_cannot_be_removed_stays_kept(tmp_path):
    host, directory = Host(), str(tmp_path)
    host.entries.add(ROOTS[0].sid)
    with host.patched():
        undo.undo_run(claimed(directory, "one", ROOTS[0]), keep=True)
        host.resisting.add(ROOTS[0].sid)
        assert undo.clean(directory) == ([], ["C:\\a: in the way"])
        host.resisting.clear()
        assert undo.clean(directory) == (["C:\\a"], [])
    assert host.entries == set()


def test_entries_are_removed_below_a_directory_that_has_no_access_list(tmp_path, monkeypatch):
    """Remove the access list of a directory, as the user can do. The objects in this directory keep
    corral's entries, which must still be removed.
    """
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "file").touch()
    root = journal.Root(path=str(tmp_path), access="read", sid=ROOTS[0].sid, volume=1, file=2)
    ours = access_list.entries_for(root.sid, "read", directory=False, root=False)
    listed = access_list.write(access_list.Descriptor(control=0, revision=2, entries=ours))
    descriptors = {
        str(tmp_path): listed,
        str(tmp_path / "open"): b"\1\0\0\x80" + bytes(16),
        str(tmp_path / "open" / "file"): listed,
    }
    monkeypatch.setattr(
        granted_tree,
        "open_object",
        lambda path: contextlib.nullcontext(types.SimpleNamespace(value=path)),
    )
    monkeypatch.setattr(granted_tree, "has_identity", lambda *_: True)
    monkeypatch.setattr(granted_tree, "is_directory", os.path.isdir)
    monkeypatch.setattr(win32_security, "read_security", descriptors.__getitem__)
    monkeypatch.setattr(win32_security, "write_security", descriptors.__setitem__)
    assert undo.withdraw(root) == []
    left = [path for path, raw in descriptors.items() if raw == listed]
    assert left == []
    with pytest.raises(access_list.Unusable):
        # The directory `open` still has no access list.
        access_list.read(descriptors[str(tmp_path / "open")])
