"""Grant paths to an AppContainer by adding entries to the access lists of files and directories.

A root is a granted path. Each pair of a root and an access (read or write) has a capability of its
own, and the entries give access only to this capability's SID (`access_list.grant_sid`). A run's
token contains the SIDs of its policy's grants. An AppContainer can use an object only if the
object's access list allows it twice: to the user, and to a capability in the token. The entries
give no access to other programs, because these do not have the capabilities.

`plan` is pure. It refuses roots that corral must not change (`paths.windows`), and trees with links
or too many files. Some objects in a tree get less access than the grant gives:

- Secrets get no entry.
- Files that other programs run, such as shell startup files, can only be read. So can files with
  several names (hard links).
- The directories above secrets, and above files that other programs run, cannot be renamed or
  deleted.

`Grants.apply` sets the entries by handle, under a mutex for each root. `undo.Claim` has to be
applied first: it writes the journal, and removes the entries when the run ends. With `keep_grants`
the entries stay, and a later run sets only the entries of objects that get less access.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat

from corral.errors import PolicyError
from corral.paths import windows
from corral.plan import model
from corral.plan.model import Results
from corral.platforms.windows.files import granted_tree, journal
from corral.platforms.windows.files.access_list import Reach, entries_for, grant_sid
from corral.platforms.windows.files.granted_tree import Tree
from corral.platforms.windows.files.journal import Root
from corral.platforms.windows.mechanisms.restricted_token import ordinary_sids
from corral.policy.model import Grant, Policy
from corral.record import record, replace

MAX_SHOWN = 5
ADMINISTRATORS_ONLY = (
    "is open only to administrators, but the target does not have administrator rights: "
    "give your own account access to it (`icacls PATH /grant %USERNAME%:(OI)(CI)M`)"
)
INSTALLED = (".venv", "venv", "node_modules")


@record
class Exceptions:
    """The objects in a root that get less access than the grant gives, by relative name. Everything
    below them gets less access too.

    `closed` objects get no entry. `read_only` objects in a write grant get the entry of a read
    grant. For `secret` objects corral also checks that their access lists do not already give
    access to all AppContainers.
    """

    closed: frozenset[str] = frozenset()
    secret: frozenset[str] = frozenset()
    read_only: frozenset[str] = frozenset()

    def entries(self, root: Root, node: granted_tree.Node) -> tuple[bytes, ...]:
        if node.name in self.closed:
            return ()
        read = node.links > 1 or any(windows.is_inside(node.name, one) for one in self.read_only)
        less = (*self.closed, *self.read_only)
        # The target must not rename a directory above an object with less access. Otherwise it
        # could create another directory with the old name, to which the exceptions would not apply.
        pinned = not node.name or any(windows.is_inside(one, node.name) for one in less)
        access: Reach = "read" if read else root.access
        return entries_for(root.sid, access, directory=node.directory, root=pinned)

    def describe(self) -> str:
        words = [
            f"{what} {', '.join(_listed(sorted(names)))}"
            for what, names in (("without", self.closed), ("read only", self.read_only))
            if names
        ]
        return f" ({'; '.join(words)})" if words else ""


@record
class Grants:
    name = "path_grants"
    roots: tuple[Root, ...]
    directory: str  # the directory of the journals
    exceptions: tuple[Exceptions, ...] = ()  # one for each root
    # Objects that get no entry, because this user is not allowed to change their access lists.
    foreign: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()  # roots that only administrators can read
    keep: bool = False
    # Files in write grants that do not exist yet, but that other programs would run. At the end of
    # the run corral reports those that the target has created.
    watched: tuple[str, ...] = ()
    stage: model.Stage = "supervisor"

    @property
    def sids(self) -> tuple[str, ...]:
        return tuple(root.sid for root in self.roots)

    def describe(self) -> str:
        words = [
            f"{root.access} {root.path} by capability {root.sid}{less.describe()}"
            for root, less in self._pairs()
        ]
        return "grants: " + ("; ".join(words) or "none") + (" (kept)" if self.keep else "")

    def warnings(self) -> tuple[str, ...]:
        foreign = (
            f"{path} is closed to the target, because you are not allowed to change its access list"
            for path in _listed(self.foreign)
        )
        unreadable = (f"{path} {ADMINISTRATORS_ONLY}" for path in self.unreadable)
        return (*foreign, *unreadable)

    def _pairs(self) -> Iterator[tuple[Root, Exceptions]]:
        return zip(self.roots, (*self.exceptions, *repeat(Exceptions(), len(self.roots))))  # noqa: B905

    def apply(self, _results: Results) -> None:
        kept = {root.sid for root in journal.kept(self.directory)}
        for root, less in self._pairs():
            with granted_tree.mutex(root.sid):
                set_entries(root, less, kept=root.sid in kept)

    def verify(self, _results: Results) -> None:
        for root in self.roots:
            problem = "its access list has no entry for this grant"
            granted_tree.check_entry(root.path, root.sid, problem)


def read_trees(policy: Policy, *, home: str, copied: Sequence[str] = ()) -> dict[str, Tree]:
    """Return the tree of each grant, by path. Raise PolicyError if a tree cannot be read.

    In a read grant, list directories of installed packages (such as `node_modules`) as closed if
    they are below one of the paths in `copied`, because the target uses copies of these packages.
    """
    try:
        return {grant.path: _read_tree(grant, home, copied) for grant in policy.grants}
    except OSError as error:
        raise PolicyError(f"{error.filename} cannot be read: {error.strerror}") from error


def _read_tree(grant: Grant, home: str, copied: Sequence[str]) -> Tree:
    in_home, read = _path_in_home(grant.path, home), grant.access == "read"

    def is_closed(name: str) -> bool:
        installed = read and name.rpartition("\\")[2].lower() in INSTALLED
        if installed and any(windows.is_inside(_shown(grant.path, name), one) for one in copied):
            return True
        return granted_tree.is_secret(name, in_home)

    if sys.platform == "win32":
        found = granted_tree.read_tree(
            grant.path, is_closed=is_closed, is_foreign=granted_tree.is_foreign
        )
        sids = ordinary_sids()
        return replace(found, readable=not sids or granted_tree.is_readable(grant.path, sids))
    return granted_tree.read_tree(grant.path, is_closed=is_closed)


def plan(
    policy: Policy, seen: Mapping[str, Tree], *, known: windows.KnownDirectories, directory: str
) -> Grants:
    problems: list[str] = []
    roots: list[Root] = []
    exceptions: list[Exceptions] = []
    for grant in policy.grants:
        if grant.access == "socket":
            problems.append(f"{grant.path}: unix sockets cannot be granted on Windows")
            continue
        problems += _problems(grant, seen[grant.path], known)
        roots.append(_root(grant, grant.access))
        exceptions.append(_exceptions(grant, seen[grant.path], policy, known.home))
        if policy.windows.strict_grants:
            problems += _strict_problems(grant, seen[grant.path], exceptions[-1], known.home)
    if problems:
        raise PolicyError(
            "these paths cannot be granted to an AppContainer: " + "; ".join(problems),
            hint="grant a narrower directory, or only the files in it that the server needs",
        )
    return Grants(
        roots=tuple(roots),
        directory=directory,
        exceptions=tuple(exceptions),
        foreign=tuple(_shown(path, name) for path, one in seen.items() for name in one.foreign),
        unreadable=tuple(path for path, one in seen.items() if not one.readable),
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
    """Return a path relative to the user's profile, or "" for the profile itself and for paths
    outside it.
    """
    return path[len(home) :].strip("\\") if windows.is_inside(path, home) else ""


def _root(grant: Grant, access: Reach) -> Root:
    sid = grant_sid(grant.path, access, (grant.device, grant.inode))
    return journal.Root(
        path=grant.path, access=access, sid=sid, volume=grant.device, file=grant.inode
    )


def _problems(grant: Grant, tree: Tree, known: windows.KnownDirectories) -> list[str]:
    try:
        windows.check_root(grant.path, known)
    except windows.Refused as refused:
        return [f"{grant.path}: {refused}"]
    if not tree.whole:
        return [f"{grant.path} contains more than {granted_tree.MAX_ENTRIES} files and directories"]
    texts = (granted_tree.problem(one, shown=_shown(grant.path, one.name)) for one in tree.nodes)
    return _listed([text for text in texts if text])


def _listed(items: Sequence[str]) -> list[str]:
    more = len(items) - MAX_SHOWN
    return list(items) if more <= 0 else [*items[:MAX_SHOWN], f"and {more} more"]


def _exceptions(grant: Grant, tree: Tree, policy: Policy, home: str) -> Exceptions:
    read_only: set[str] = set()
    in_home = _path_in_home(grant.path, home)
    if grant.access == "write":
        names = (one.name for one in tree.nodes if granted_tree.is_starting(one.name, in_home))
        reads = (other.path for other in policy.grants if other.access == "read")
        inner = (one[len(grant.path) + 1 :] for one in reads if windows.is_inside(one, grant.path))
        read_only = {*names, *inner} - {""}
    return Exceptions(
        closed=frozenset((*tree.closed, *tree.foreign)),
        secret=frozenset(name for name in tree.closed if granted_tree.is_secret(name, in_home)),
        read_only=frozenset(read_only),
    )


def _strict_problems(grant: Grant, tree: Tree, less: Exceptions, home: str) -> list[str]:
    """Return why `windows.strict_grants` refuses the grant: the secrets in it, and the files that
    other programs run.
    """
    in_home = _path_in_home(grant.path, home)
    names = (node.name for node in tree.nodes) if grant.access == "write" else ()
    starting = [name for name in names if granted_tree.is_starting(name, in_home)]
    found = [f"{_shown(grant.path, name)} is a secret" for name in sorted(less.secret)]
    found += [f"{_shown(grant.path, name)} is run by other programs" for name in sorted(starting)]
    return [f"{text} (windows.strict_grants)" for text in _listed(found)]


def _shown(root: str, name: str) -> str:
    return f"{root}\\{name}" if name else root


def set_entries(root: Root, less: Exceptions, *, kept: bool) -> None:
    """Set the entries of all objects in a root.

    If an earlier run has kept the entries, and the root object still has its entry, set only the
    entries of objects with less access than the grant gives. Such an object may be new, and may
    have inherited too much access from its directory.
    """
    walk = granted_tree.walk(root.path, less.closed)
    complete = False
    try:
        for node, handle in walk:
            path = _shown(root.path, node.name)
            if not node.name and not granted_tree.has_identity(
                handle.value, root.volume, root.file
            ):
                raise OSError(0, "the granted object was replaced by another object", path)
            ours = less.entries(root, node)
            usual = entries_for(root.sid, root.access, directory=node.directory, root=False)
            if complete and ours == usual:
                continue
            changed = granted_tree.set_entries(path, handle.value, root.sid, ours)
            if not node.name:
                complete = kept and not changed
            if node.name in less.secret:
                granted_tree.check_closed(path, handle.value)
    finally:
        walk.close()  # otherwise an error's traceback would keep handles open
