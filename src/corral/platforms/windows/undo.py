"""Undo the changes that a run made outside its processes, when the run ends or in a later run.

From access lists, corral removes only entries with its own SIDs, and only if no other run uses
them. Each granted path (root) has a mutex. corral locks it while it looks for other runs that use
the root, removes the entries, and records the removal in the journal.
"""

from __future__ import annotations

import os

from corral.abi import win32, win32_files, win32_security
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
    """Cleans up after dead runs, and writes into the journal which changes this run will make.

    This is the first step of a run with an AppContainer. The changes are undone at the end of the
    run, when the results of its steps are released.
    """

    name = "journal"
    directory: str
    run: str
    profile: str  # empty if the profile is kept after the run
    roots: tuple[Root, ...]
    keep: bool = False  # keep the entries of the grants after the run
    stage: model.Stage = "supervisor"
    verify = unverified

    @property
    def residue(self) -> str:
        return journal.journal_path(self.directory, self.run)

    def describe(self) -> str:
        return f"keep a journal in {self.directory} of the changes that {self.run} makes"

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
    """Undo a run's changes, except for the entries of its grants if `keep` is true. Return the
    failures as text. After a failure the journal stays, so that a later run tries again.
    """
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
    """Clean up after every dead run. Return the failures as text."""
    return [text for one in journal.dead(directory) for text in undo_run(one, keep=False)]


def clean(directory: str) -> tuple[list[str], list[str]]:
    """Remove kept grants that no run uses. Return their paths, and the failures as text."""
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
    """Remove this root's entries from every object in the root. Return the failures as text.

    A root that has been moved keeps its entries. The capability in these entries depends on the
    root's path, and a target gets it only by a grant of this path. So the entries have no effect
    unless the root returns to its old path. A file that has been moved out of its root also keeps
    its entries, and a later run with the same grant can therefore open it.
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
            if win32.winerror(error) not in GONE and not _is_clear(path, root.sid):
                problems.append(f"{error.filename or path}: {error.strerror}")
    return problems


def _clear(path: str, root: Root, *, top: bool) -> bool:
    """Remove the root's entries from one object. Return whether the object is a directory whose
    content has to be cleared too.

    With `top`, `path` is the path of the root itself, and nothing is done if a different object is
    there now.
    """
    with granted_tree.open_object(path) as handle:
        if top and not granted_tree.has_identity(handle.value, root.volume, root.file):
            return False
        try:
            changed = access_list.revoke(win32_security.read_security(handle.value), root.sid)
        except access_list.Unusable:
            changed = None  # without a valid access list there is no entry to remove
        if changed is not None:
            win32_security.write_security(handle.value, changed)
        return granted_tree.is_directory(handle.value)


def _is_clear(path: str, sid: str) -> bool:
    """Return whether the access list of `path` can be read and has no entry for `sid`."""
    try:
        with win32_files.open_itself(path, access=win32_files.READ_CONTROL) as handle:
            return not access_list.has_entry(win32_security.read_security(handle.value), sid)
    except (OSError, access_list.Unusable):
        return False


def _delete(own: Journal, profile: str) -> list[str]:
    """Delete a profile, unless another run uses it. Windows itself cannot remove files with certain
    names, so remove what is left of the profile's directory too.
    """
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
        # A missing profile is not a failure, because a run may have died between writing its
        # journal and creating the profile.
        if win32.winerror(error) not in {*GONE, win32_security.ERROR_NOT_FOUND}:
            return [f"AppContainer profile {profile}: {error.strerror}"]
    return []
