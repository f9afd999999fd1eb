"""Undo what a run has made outside of its processes: at its end, or from a later run.

Only entries with one of corral's own SIDs are taken out of access lists, and only where no other
run uses them: the decision, the change and the end of the claim happen under the root's mutex.

`Claim` is the first step of a run with an AppContainer: it cleans up after dead runs, writes into
the journal what this run will make, and has all of it undone when the results are released.
"""

from __future__ import annotations

import os

from corral.abi import win32, win32_security
from corral.paths.windows import extended_path
from corral.plan import model
from corral.plan.model import Results
from corral.platforms.steps import unverified
from corral.platforms.windows.files import access_list, file_trees, granted_tree, journal
from corral.platforms.windows.files.access_list import package_sid
from corral.platforms.windows.files.journal import Journal, Root
from corral.record import record

GONE = (win32.ERROR_FILE_NOT_FOUND, win32.ERROR_PATH_NOT_FOUND)


@record
class Claim:
    """`profile` is empty for one that outlives the run. `keep`: so do the grants."""

    name = "journal"
    directory: str
    run: str
    profile: str
    roots: tuple[Root, ...]
    keep: bool = False
    stage: model.Stage = "supervisor"
    verify = unverified

    @property
    def residue(self) -> str:
        return journal.journal_path(self.directory, self.run)

    def describe(self) -> str:
        return f"journal what a crash of {self.run} would leave, in {self.directory}"

    def apply(self, results: Results) -> None:
        sweep(self.directory)
        entry = journal.Entry(profile=self.profile, roots=self.roots)
        own = journal.create(self.directory, self.run, entry)
        results.add(OpenClaim(journal=own, keep=self.keep))


@record
class OpenClaim:
    journal: Journal
    keep: bool

    def release(self) -> None:
        undo_run(self.journal, keep=self.keep)


def undo_run(own: Journal, *, keep: bool) -> list[str]:
    """Undo what a run has made, with `keep` all but its grants. Return what resisted, as text."""
    problems: list[str] = []
    entry = own.entry
    for root in entry.roots if entry else ():
        with granted_tree.mutex(root.sid):
            if keep:
                journal.keep(own.directory, root)
            elif not journal.is_used(root.sid, own.others()):
                problems += withdraw(root)
            if not problems:
                own.drop(root)
    if entry and entry.profile and not problems:
        problems += _delete(own, entry.profile)
    if problems:
        own.leave()
    else:
        own.end()
    return problems


def sweep(directory: str) -> list[str]:
    """Clean up after every dead run. Return what resisted."""
    return [text for one in journal.dead(directory) for text in undo_run(one, keep=False)]


def clean(directory: str) -> tuple[list[str], list[str]]:
    """Take out what `keep_grants` left and no run uses. Return the paths, and what resisted."""
    done: list[str] = []
    problems: list[str] = []
    for root in journal.kept(directory):
        with granted_tree.mutex(root.sid):
            journal.forget(directory, root)
            if journal.is_used(root.sid, journal.living(directory)):
                continue
            found = withdraw(root)
            if found:
                journal.keep(directory, root)
            problems += found
            done += [] if found else [root.path]
    return done, problems


def withdraw(root: Root) -> list[str]:
    """Take this root's entries out of everything in it. Return what resisted.

    A root that has moved away keeps them, for a capability of the path where it was: no token has
    it unless the root returns. A file that was moved out of its root keeps them too, and a later
    run with the same grant can open it.
    """
    problems: list[str] = []
    top = extended_path(root.path)
    pending = [top]
    while pending:
        path = pending.pop()
        try:
            if _clear(path, root, top=path == top):
                pending += [os.path.join(path, name) for name in os.listdir(path)]
        except OSError as error:
            if win32.winerror(error) not in GONE:
                problems.append(f"{error.filename or path}: {error.strerror}")
    return problems


def _clear(path: str, root: Root, *, top: bool) -> bool:
    """Return whether this is a directory of the tree, whose content has to be cleared too."""
    with granted_tree.open_object(path) as handle:
        if top and not granted_tree.has_identity(handle.value, root.volume, root.file):
            return False
        try:
            changed = access_list.revoke(win32_security.read_security(handle.value), (root.sid,))
        except access_list.Unusable:
            changed = None  # without a list there are no entries
        if changed is not None:
            win32_security.write_security(handle.value, changed)
        return granted_tree.is_directory(handle.value)


def _delete(own: Journal, profile: str) -> list[str]:
    """Delete a profile, and the files with names that Windows' own removal does not accept."""
    if any(entry.profile == profile for entry in own.others()):
        return []
    try:
        directory = os.path.dirname(win32_security.profile_folder(package_sid(profile)))
    except OSError:
        directory = ""  # there is no such profile
    problems = _delete_profile(profile)
    if directory and os.path.lexists(directory):
        file_trees.remove(directory)
        problems = _delete_profile(profile) if problems else []
    return problems


def _delete_profile(profile: str) -> list[str]:
    try:
        win32_security.DeleteAppContainerProfile(profile)
    except OSError as error:
        # A run that died early has written a profile into the journal and not made it.
        if win32.winerror(error) not in {*GONE, win32_security.ERROR_NOT_FOUND}:
            return [f"AppContainer profile {profile}: {error.strerror}"]
    return []
