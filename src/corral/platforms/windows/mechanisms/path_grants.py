"""Granted paths: entries for a capability of their own in the access lists of a tree.

Each (root, access) has its own capability SID (`access_list.grant_sid`), and a run's token has
those of its policy. An AppContainer reaches what its user may reach *and* such an entry allows, so
the entries open nothing to other programs.

`plan` is pure and refuses: roots that are not ours to change (`paths.windows`), trees with links,
with files of several names, with secrets (`granted_tree`) or with too many entries, a read grant in
a write grant. `Grants.apply` sets the entries by handle, under a mutex for each root. `undo.Claim`
has to be applied before: it writes the journal, and takes the entries out at the end. With
`keep_grants` they stay, and a later run only checks that they are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from corral.errors import PolicyError
from corral.paths import windows
from corral.plan import model
from corral.plan.model import Results
from corral.platforms.windows.files import access_list, granted_tree, journal
from corral.platforms.windows.files.access_list import Reach, grant_sid
from corral.platforms.windows.files.granted_tree import Tree
from corral.platforms.windows.files.journal import Root
from corral.policy.model import Grant, Policy
from corral.record import record

MAX_SHOWN = 5


@record
class Grants:
    """`directory` is the journal's. `watched` would start by themselves, if a target made them."""

    name = "path_grants"
    roots: tuple[Root, ...]
    directory: str
    keep: bool = False
    watched: tuple[str, ...] = ()
    stage: model.Stage = "supervisor"

    @property
    def sids(self) -> tuple[str, ...]:
        return tuple(root.sid for root in self.roots)

    def describe(self) -> str:
        words = [f"{root.access} {root.path} by capability {root.sid}" for root in self.roots]
        return "grants: " + ("; ".join(words) or "none") + (" (kept)" if self.keep else "")

    def apply(self, _results: Results) -> None:
        kept = {root.sid for root in journal.kept(self.directory)}
        for root in self.roots:
            with granted_tree.mutex(root.sid):
                set_entries(root, kept=root.sid in kept)

    def verify(self, _results: Results) -> None:
        for root in self.roots:
            problem = "its access list has no entry of this grant"
            granted_tree.check_entry(root.path, root.sid, problem)


def read_trees(policy: Policy) -> dict[str, Tree]:
    """Return all granted trees as they are now, by the root's path."""
    try:
        return {grant.path: granted_tree.read_tree(grant.path) for grant in policy.grants}
    except OSError as error:
        raise PolicyError(f"{error.filename} cannot be looked at: {error.strerror}") from error


def plan(
    policy: Policy, seen: Mapping[str, Tree], *, known: windows.KnownDirectories, directory: str
) -> Grants:
    problems = [*_nested(policy)]
    roots: list[Root] = []
    for grant in policy.grants:
        if grant.access == "socket":
            problems.append(f"{grant.path}: unix sockets cannot be granted on Windows")
            continue
        problems += _problems(grant, grant.access, seen[grant.path], policy, known)
        roots.append(_root(grant, grant.access))
    if problems:
        raise PolicyError(
            "cannot be granted to an AppContainer: " + "; ".join(problems),
            hint="grant a narrower directory, or name the files in it that the server needs",
        )
    return Grants(
        roots=tuple(roots),
        directory=directory,
        keep=policy.windows.keep_grants,
        watched=tuple(_watched(policy, seen, known.home)),
    )


def _watched(policy: Policy, seen: Mapping[str, Tree], home: str) -> Iterator[str]:
    for grant in policy.grants:
        if grant.access == "write" and grant.directory:
            names = (node.name for node in seen[grant.path].nodes)
            for name in granted_tree.absent(names, _path_in_home(grant.path, home)):
                yield _shown(grant.path, name)


def _path_in_home(path: str, home: str) -> str:
    """Return a path relative to the user's profile; empty outside, and for the profile itself."""
    return path[len(home) :].strip("\\") if windows.is_inside(path, home) else ""


def _root(grant: Grant, access: Reach) -> Root:
    sid = grant_sid(grant.path, access, (grant.device, grant.inode))
    return journal.Root(
        path=grant.path, access=access, sid=sid, volume=grant.device, file=grant.inode
    )


def _problems(
    grant: Grant, access: Reach, tree: Tree, policy: Policy, known: windows.KnownDirectories
) -> list[str]:
    try:
        windows.check_root(grant.path, known)
    except windows.Refused as refused:
        return [f"{grant.path}: {refused}"]
    if not tree.whole:
        return [f"{grant.path} holds more than {granted_tree.MAX_ENTRIES} files and directories"]
    texts = (granted_tree.problem(one, shown=_shown(grant.path, one.name)) for one in tree.nodes)
    found = [text for text in texts if text]
    named = [other.path for other in policy.grants]
    names = (node.name for node in tree.nodes if node.name)
    at_home = _path_in_home(grant.path, known.home)
    hidden = [_shown(grant.path, name) for name in granted_tree.find(names, access, at_home)]
    found += [
        f"{path} lies in a grant and cannot be hidden or held read-only"
        for path in hidden
        if not any(
            windows.is_inside(path, one) and not windows.is_inside(grant.path, one) for one in named
        )
    ]
    more = len(found) - MAX_SHOWN
    return found if more <= 0 else [*found[:MAX_SHOWN], f"and {more} more in {grant.path}"]


def _nested(policy: Policy) -> list[str]:
    """Refuse less access below a root: entries of access lists only ever add access."""
    writes = [grant.path for grant in policy.grants if grant.access == "write"]
    return [
        f"{grant.path} cannot be held read-only in {outer}, which may be written"
        for grant in policy.grants
        if grant.access == "read"
        for outer in writes
        if windows.is_inside(grant.path, outer)
    ]


def _shown(root: str, name: str) -> str:
    return f"{root}\\{name}" if name else root


def set_entries(root: Root, *, kept: bool) -> None:
    """Set the entries of everything in a root; if they are kept, only check the root's own."""
    walk = granted_tree.walk(root.path)
    try:
        for path, handle, directory in walk:
            top = path == root.path
            if top and not granted_tree.has_identity(handle.value, root.volume, root.file):
                raise OSError(0, "is no longer what was granted", path)
            ours = access_list.entries_for(root.sid, root.access, directory=directory, root=top)
            if not granted_tree.set_entries(path, handle.value, root.sid, ours) and kept:
                return
    finally:
        walk.close()  # at once, and not with an error's traceback: it has open handles
