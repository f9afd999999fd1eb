"""What a run has made outside of its processes, undone: by itself at its end, or by a later one.

Only entries with one of our own SIDs are taken out of access lists, and only where nobody else uses
them: the decision, the change and the giving up of the claim are one under the root's mutex.

`Claim` is the first step of a run with an AppContainer or with grants: it sweeps up after dead
runs, journals what this one will make, and has all of it undone when the scene ends.
"""

from __future__ import annotations

import os

from corral.abi import win32, win32_security
from corral.platforms.windows.files import access_list, granted_tree, journal, remove_directory
from corral.platforms.windows.files.access_list import package_sid
from corral.platforms.windows.mechanisms import path_grants
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Place
    from corral.platforms.windows.files.journal import Journal, Root
    from corral.platforms.windows.run_context import Scene

GONE = (win32.ERROR_FILE_NOT_FOUND, win32.ERROR_PATH_NOT_FOUND)


@record
class Claim:
    """`profile` is empty for one that outlives the run. `keep`: so do the grants."""

    directory: str
    run: str
    profile: str
    roots: tuple[Root, ...]
    keep: bool = False
    place: Place = "supervisor"

    def describe(self) -> str:
        return f"journal what a crash of {self.run} would leave, in {self.directory}"


def apply(step: Claim, scene: Scene) -> None:
    sweep(step.directory)
    entry = journal.Entry(profile=step.profile, roots=step.roots)
    own = journal.create(step.directory, step.run, entry)
    scene.undo.append(lambda: end(own, keep=step.keep))


def end(own: Journal, *, keep: bool) -> list[str]:
    """Undo what this run has made; with `keep` its grants stay. What resists comes back as text,
    and the journal stays for the next one to try.
    """
    problems: list[str] = []
    entry = own.entry
    for root in entry.roots if entry else ():
        with path_grants.mutex(root):
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
    """Clean up after every dead run. Returns what resisted."""
    return [text for one in journal.dead(directory) for text in end(one, keep=False)]


def clean(directory: str) -> tuple[list[str], list[str]]:
    """Take out what `keep_grants` has left, where no run uses it: (paths, what resisted)."""
    done: list[str] = []
    problems: list[str] = []
    for root in journal.kept(directory):
        with path_grants.mutex(root):
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
    """Take this root's entries out of all that lies in it. A root that has moved away keeps them,
    for a capability of the path where it was: no token has it unless the root returns. A file that
    was moved out of its root keeps them too, and a later run with the same grant can open it.
    """
    problems: list[str] = []
    top = granted_tree.reaching(root.path)
    pending = [top]
    while pending:
        path = pending.pop()
        try:
            if _cleared(path, root, top=path == top):
                pending += [os.path.join(path, name) for name in os.listdir(path)]
        except OSError as error:
            if win32.winerror(error) not in GONE:
                problems.append(f"{error.filename or path}: {error.strerror}")
    return problems


def _cleared(path: str, root: Root, *, top: bool) -> bool:
    """Whether it is a directory of the tree, whose content has to be looked at too."""
    with granted_tree.opened(path) as handle:
        if top and not granted_tree.is_identity(handle.value, root.volume, root.file):
            return False
        try:
            changed = access_list.revoke(win32_security.security_of(handle.value), (root.sid,))
        except access_list.Unusable:
            changed = None  # whoever took the list away has taken our entries along
        if changed is not None:
            win32_security.set_security(handle.value, changed)
        return granted_tree.is_directory(handle.value)


def _delete(own: Journal, profile: str) -> list[str]:
    """Windows goes by names; what a target made that has none which it takes, is removed here."""
    if any(entry.profile == profile for entry in own.others()):
        return []
    place = _place(profile)
    problems = _deleted(profile)
    if place and os.path.lexists(place):
        remove_directory.remove(place)
        problems = _deleted(profile) if problems else []
    return problems


def _place(profile: str) -> str:
    """The directory of a profile with all that is in it; empty if there is no such profile."""
    try:
        return os.path.dirname(win32_security.folder_of(package_sid(profile)))
    except OSError:
        return ""


def _deleted(profile: str) -> list[str]:
    try:
        win32_security.DeleteAppContainerProfile(profile)
    except OSError as error:
        # A run that died early has journalled a profile and not made it.
        if win32.winerror(error) not in {*GONE, win32_security.ERROR_NOT_FOUND}:
            return [f"AppContainer profile {profile}: {error.strerror}"]
    return []
