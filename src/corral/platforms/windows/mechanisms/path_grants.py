"""Granted paths: entries for a capability of their own in the access lists of a tree.

Each (root, access) has its own capability SID (`capabilities.grant_sid`), and a run's token has
those of its policy. An AppContainer reaches what its user may reach *and* such an entry allows; so
the entries open nothing to anybody else.

`plan` is pure and refuses: roots that are not ours to change (`paths`), trees with links, with
files of several names, with secrets (`secrets`) or with too many entries, a read grant in a write
grant. `apply` sets the entries by handle (`trees`), under a mutex for each root, after `journal`
has them on disk. `residue` takes them out again. With `keep_grants` they stay, and a later run only
looks whether they are there.

For who composes a plan:
    step = grants.plan(policy, grants.look(policy), known=paths.places(environment, home),
                       directory=...)
    residue.Claim(roots=step.roots, ...) comes first of all steps, so that it is undone last;
    step.sids belong into app_container.Profile.capabilities.
"""

from __future__ import annotations

from corral.abi import win32_files, win32_security
from corral.errors import PolicyError
from corral.paths import windows
from corral.platforms.windows.files import access_list, granted_tree, journal
from corral.platforms.windows.files.access_list import grant_sid
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from corral.plan.model import Place
    from corral.platforms.windows.files.access_list import Reach
    from corral.platforms.windows.files.granted_tree import Tree
    from corral.platforms.windows.files.journal import Root
    from corral.platforms.windows.run_context import Scene
    from corral.policy.model import Grant, Policy

MOST_SHOWN = 5


@record
class Grants:
    """`directory` is the journal's. `watched` are names that would start by themselves, if a
    target made them.
    """

    roots: tuple[Root, ...]
    directory: str
    keep: bool = False
    watched: tuple[str, ...] = ()
    place: Place = "supervisor"

    @property
    def sids(self) -> tuple[str, ...]:
        return tuple(root.sid for root in self.roots)

    def describe(self) -> str:
        words = [f"{root.access} {root.path} by capability {root.sid}" for root in self.roots]
        return "grants: " + ("; ".join(words) or "none") + (" (kept)" if self.keep else "")


def look(policy: Policy) -> dict[str, Tree]:
    """All trees of a policy as they are now, by the root's path."""
    try:
        return {grant.path: granted_tree.look(grant.path) for grant in policy.grants}
    except OSError as error:
        raise PolicyError(f"{error.filename} cannot be looked at: {error.strerror}") from error


def plan(
    policy: Policy, seen: Mapping[str, Tree], *, known: windows.Places, directory: str
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
            for name in granted_tree.absent(names, _place(grant.path, home)):
                yield _shown(grant.path, name)


def _place(path: str, home: str) -> str:
    """Where it lies in the user's profile; empty for elsewhere, and for the profile itself."""
    return path[len(home) :].strip("\\") if windows.is_inside(path, home) else ""


def _root(grant: Grant, access: Reach) -> Root:
    sid = grant_sid(grant.path, access, (grant.device, grant.inode))
    return journal.Root(
        path=grant.path, access=access, sid=sid, volume=grant.device, file=grant.inode
    )


def _problems(
    grant: Grant, access: Reach, tree: Tree, policy: Policy, known: windows.Places
) -> list[str]:
    try:
        windows.check_place(grant.path, known)
    except windows.Refused as refused:
        return [f"{grant.path}: {refused}"]
    if not tree.whole:
        return [f"{grant.path} holds more than {granted_tree.MOST_ENTRIES} files and directories"]
    found = [
        text
        for node in tree.nodes
        if (text := granted_tree.problem(node, shown=_shown(grant.path, node.name)))
    ]
    named = [other.path for other in policy.grants]
    names = (node.name for node in tree.nodes if node.name)
    place = _place(grant.path, known.home)
    hidden = [_shown(grant.path, name) for name in granted_tree.find(names, access, place)]
    found += [
        f"{path} lies in a grant and cannot be hidden or held read-only"
        for path in hidden
        if not any(
            windows.is_inside(path, one) and not windows.is_inside(grant.path, one) for one in named
        )
    ]
    more = len(found) - MOST_SHOWN
    return found if more <= 0 else [*found[:MOST_SHOWN], f"and {more} more in {grant.path}"]


def _nested(policy: Policy) -> list[str]:
    """What is allowed adds up: nothing below a root can be allowed less than the root."""
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


def mutex(root: Root) -> win32_files.Mutex:
    """Of this root and access: who sets or takes out its entries, or decides about them."""
    return win32_files.Mutex(f"Local\\corral-{root.sid}")


def apply(step: Grants, _scene: Scene) -> None:
    kept = {root.sid for root in journal.kept(step.directory)}
    for root in step.roots:
        with mutex(root):
            spread(root, kept=root.sid in kept)


def verify(step: Grants, _scene: Scene) -> None:
    """Each root's list has the entries."""
    for root in step.roots:
        with granted_tree.opened(granted_tree.reaching(root.path)) as handle:
            if not access_list.holds(win32_security.security_of(handle.value), root.sid):
                raise OSError(0, "its access list has no entry of this grant", root.path)


def spread(root: Root, *, kept: bool) -> None:
    """Entries for all that a root holds; of one that is kept only the root is looked at."""
    walk = granted_tree.walk(root.path)
    try:
        for path, handle, directory in walk:
            top = path == root.path
            if top and not granted_tree.is_identity(handle.value, root.volume, root.file):
                raise OSError(0, "is no longer what was granted", path)
            ours = access_list.entries_for(root.sid, root.access, directory=directory, root=top)
            if not _set(path, handle.value, root.sid, ours) and kept:
                return
    finally:
        walk.close()  # not when an error's traceback lets go of it: there are handles in it


def _set(path: str, handle: int, sid: str, ours: tuple[bytes, ...]) -> bool:
    """Whether there was anything to change."""
    try:
        changed = access_list.grant(win32_security.security_of(handle), sid, ours)
        if changed is not None:
            win32_security.set_security(handle, changed)
    except access_list.Unusable as error:
        raise OSError(0, str(error), path) from error
    except OSError as error:
        raise granted_tree.named(error, path) from error
    return changed is not None
