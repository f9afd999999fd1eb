"""Turn the denied accesses of a watched run into proposals.

A read counts as denied if the path exists on the host but not in the sandbox. So a read of a file
that exists nowhere is not reported. A write to a path that is not writable in the sandbox counts as
denied if the host has the path, or at least the directory that would contain it.

A target may ask for any number of paths. So the work must not grow with the square of the number of
paths, and corral asks the user about only a few of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from corral.policy import secret_files
from corral.policy.secret_paths import CEILINGS, find_paths, is_anothers, is_git_hook
from corral.record import record
from corral.safe_text import shell_word
from corral.supervisor.ungranted_paths import socket_flag

if TYPE_CHECKING:
    from corral.denials.records import Kind

SYSTEM = frozenset(("/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix", "/gnu", "/boot"))
SYSTEM_STATE = frozenset(("/opt", "/var/cache", "/var/lib", "/var/spool"))
"""Programs and services on the host keep their data in these directories, so write grants in them
are never proposed.
"""
BYTECODE = "__pycache__"
SKIPPED = frozenset(("/proc", "/sys", "/dev", "/run"))
PROJECT_MARKS = (".git", "package.json", "pyproject.toml", "Cargo.toml", "go.mod", ".hg")
MIN_GROUPED = 3
MAX_PROPOSED = 50  # no user would read questions about 1000 paths
MAX_LISTED = 50
REPOSITORY = frozenset((".git", ".hg", ".jj"))
OWN_FILE = "one of the server's own files"
KINDS: dict[str, Kind] = {
    "--read": "path",
    "--write": "path",
    "--own-unix-sockets": "unix_socket",
    "--env": "variable",
    "--max-memory": "limit",
    "--profile": "own_files",
    "--allow-net": "name",
    "--allow-subprocess": "start",
}


@record
class Seen:
    """The paths that the target sees. `reads` and `writes` are the granted paths.

    If `same_files` is true, the target sees the host's own directories, so symbolic links lead to
    the same files as on the host.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    private: tuple[str, ...]  # directories that are empty when the target starts
    own: tuple[str, ...]  # the files and directories of the server's program
    home: str  # the target's home inside the sandbox
    host_home: str
    same_files: bool = False


@record
class AskedFor:
    path: str
    access: str
    times: int


@record
class Proposal:
    """A suggested grant: the `flag` that gives it, and the flag's value `path`.

    `why` is the reason for the grant, and becomes a comment in a policy file. `more` describes how
    `path` differs from the path that the target asked for.
    """

    flag: str
    path: str
    why: str
    more: str = ""

    def typed(self) -> str:
        valued = self.path and self.flag != "--own-unix-sockets"
        return f"{self.flag} {shell_word(self.path)}" if valued else self.flag

    def kind(self) -> Kind:
        return KINDS[self.flag]


@record
class Learned:
    """The proposals of a run. `never` lists paths and variables that corral does not propose, each
    with the reason. `calls` is the number of watched calls. `waited_seconds` is their total delay.
    """

    asked_for: tuple[AskedFor, ...] = ()
    proposed: tuple[Proposal, ...] = ()
    never: tuple[tuple[str, str], ...] = ()
    calls: int = 0
    waited_seconds: float = 0.0


class Tree:
    """A set of paths. Each path includes everything below it."""

    def __init__(self, tops: Iterable[str]) -> None:
        self._tops = frozenset(tops)
        self._above = frozenset(one for top in self._tops for one in _find_parents(top))

    def contains(self, path: str) -> bool:
        return path in self._tops or self.is_below(path)

    def is_below(self, path: str) -> bool:
        """Return whether a path is strictly below one of the paths in this set."""
        return any(one in self._tops for one in _find_parents(path))

    def is_above(self, path: str) -> bool:
        return path in self._above


def _find_parents(path: str) -> Iterator[str]:
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent


def find_denied(accesses: Mapping[tuple[str, bool], int], seen: Seen) -> list[AskedFor]:
    """Return the accesses that the sandbox denied, with their paths on the host."""
    counts: dict[tuple[str, str], int] = {}
    made = {inside for inside, is_write in accesses if is_write}
    reads, writes, private = Tree(seen.reads), Tree(seen.writes), Tree(seen.private)
    skipped = Tree(SKIPPED)
    for (inside, is_write), times in accesses.items():
        path = find_on_host(inside, seen)
        if skipped.contains(path) or BYTECODE in path.split("/"):
            continue
        # Programs often try to create a directory that exists already. This does not count as a
        # write.
        access = "write" if is_write and not os.path.isdir(path) else "read"
        if private.is_below(inside) and not _is_missing(inside, access, made, seen):
            continue
        if _is_denied(path, access, reads, writes):
            counts[path, access] = counts.get((path, access), 0) + times
    asked = Tree(path for path, _ in counts)
    return [
        AskedFor(path=path, access=access, times=times)
        for (path, access), times in counts.items()
        # Leave out a directory above another denied path, because it was read only on the way to
        # that path.
        if access == "write" or not asked.is_above(path) or not os.path.isdir(path)
    ]


def _is_missing(path: str, access: str, made: Collection[str], seen: Seen) -> bool:
    """Return whether a path that an access needs is missing in a private directory. A read needs
    the path itself, and a write needs the directory above it.

    A private directory contains only what the target created. Outside the home, if the host has the
    directory that a write needs, return True even if the target has created a directory with the
    same name.
    """
    if access == "read":
        return path not in made
    parent = os.path.dirname(path)
    if parent in seen.private:
        return False
    return parent not in made or (not Tree((seen.home,)).contains(path) and os.path.isdir(parent))


def find_on_host(path: str, seen: Seen) -> str:
    """Return the host's path for a path inside the sandbox."""
    found = find_in_home(path, seen)
    return os.path.realpath(path) if found == path and seen.same_files else found


def find_in_home(path: str, seen: Seen) -> str:
    """Replace the sandbox's home in a path with the user's home. Do not resolve links."""
    if path.startswith(f"{seen.home}/"):
        return os.path.join(seen.host_home, os.path.relpath(path, seen.home))
    return path


def _is_denied(path: str, access: str, reads: Tree, writes: Tree) -> bool:
    if writes.contains(path):
        return False
    if access == "read":
        passed = reads.contains(path) or reads.is_above(path) or writes.is_above(path)
        return not passed and os.path.lexists(path)
    return reads.contains(path) or os.path.lexists(path) or os.path.isdir(os.path.dirname(path))


def propose(denied: Sequence[AskedFor], seen: Seen) -> Learned:
    """Propose grants for denied accesses. List the paths that are never proposed, with reasons."""
    never: dict[str, str] = {}
    wanted: dict[str, dict[str, list[str]]] = {"read": {}, "write": {}}
    own = Tree(seen.own)
    for one in denied:
        top = _find_top(one, seen)
        if one.access == "write" and own.contains(one.path):
            never[one.path] = OWN_FILE
        elif reason := _reason_against(one.path, one.access, seen.host_home):
            never[one.path] = reason
        elif reason := _reason_against(top, one.access, seen.host_home):
            never[one.path] = f"{top}: {reason}"
        else:
            wanted[one.access].setdefault(top, []).append(one.path)
    writes = _group(wanted["write"], "write", seen)
    written = Tree(writes)
    reads = _group(wanted["read"], "read", seen)
    proposed = [_proposal("--write", path, paths) for path, paths in writes.items()]
    proposed += [
        _proposal("--read", path, paths)
        for path, paths in reads.items()
        if not written.contains(path)
    ]
    listed = sorted(never.items())
    return Learned(
        asked_for=tuple(denied),
        proposed=tuple(proposed[:MAX_PROPOSED]),
        never=(
            *list_some(listed),
            *_count_others(len(proposed) - MAX_PROPOSED, "too many to ask about at once"),
        ),
    )


def list_some(never: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the first MAX_LISTED paths that are never proposed, and the number of the rest."""
    return (*never[:MAX_LISTED], *_count_others(len(never) - MAX_LISTED, "not listed"))


def _count_others(number: int, why: str) -> Iterable[tuple[str, str]]:
    return [(f"{number} further paths", why)] if number > 0 else []


def _proposal(flag: str, path: str, paths: Sequence[str]) -> Proposal:
    verb = "change" if flag == "--write" else "read"
    others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    first = shell_word(paths[0])  # quoted, because the target chose this name
    real = os.path.realpath(path)
    leads = f"a link to {shell_word(real)}" if real != path else ""
    wider = f"for {first}{others}" if [path] != list(paths) else ""
    return Proposal(
        flag=flag,
        path=path,
        why=f"the server asked to {verb} {first}{others}{', ' if leads else ''}{leads}",
        more=", ".join(filter(None, (wider, leads))),
    )


@lru_cache(maxsize=1 << 16)
def _reason_against(path: str, access: str, home: str) -> str:
    """Return why a path must not be proposed, or "" if it may be. If it is a link, also check the
    link's destination.
    """
    paths = dict.fromkeys((path, os.path.realpath(path)))
    reasons = (_reason_against_path(one, access, home) for one in paths)
    return next(filter(None, reasons), "")


def _reason_against_path(path: str, access: str, home: str) -> str:
    if access == "write" and REPOSITORY.intersection(path.split("/")):
        return "part of a repository: files in it can run on the host"
    if access == "write" and (
        any(f"/{name}/" in f"{path}/" for name in secret_files.PROJECT) or is_git_hook(path)
    ):
        return "run by other programs, or changes what servers may do"
    hidden, protected = _find_secrets(home)
    if _is_secret(path) or hidden.contains(path) or protected.contains(path):
        return "may contain secrets, or is run by other programs"
    if path in CEILINGS or path == home or home.startswith(f"{path}/"):
        return "it contains too much of the host"
    if hidden.is_above(path) or (access == "write" and protected.is_above(path)):
        return "a directory with secrets, or with files that other programs run"
    if access == "write" and is_anothers(path, home):
        return "it may belong to another program, whose settings can name programs to run"
    if _is_socket(path):
        why = "a service of the host, which can do more than the sandbox may"
        return f"{why}; {socket_flag(path)}"
    if Tree(SYSTEM | SKIPPED).contains(path):
        return "part of the system"
    if access == "write" and Tree(SYSTEM_STATE).contains(path):
        return "part of the system"
    is_text = path.encode(errors="ignore").decode() == path
    return "" if is_text else "its name is not UTF-8, so a policy cannot contain it"


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _is_secret(path: str) -> bool:
    anywhere = secret_files.hidden_anywhere("linux")
    name = os.path.basename(path)
    return not set(anywhere).isdisjoint(path.split("/")) or secret_files.is_environment_file(name)


@lru_cache
def _find_secrets(home: str) -> tuple[Tree, Tree]:
    """Return the paths in a home that are hidden from targets, and those that targets cannot
    change. If a path is a link, its destination is included too.
    """
    hidden, protected = secret_files.hidden("linux"), secret_files.protected("linux")
    return Tree(find_paths(home, hidden)), Tree(find_paths(home, protected))


def _find_top(one: AskedFor, seen: Seen) -> str:
    """Return the path to propose for an access: the directory of a missing file, the project's
    directory for a read in a project, and otherwise the path itself.
    """
    if not os.path.lexists(one.path):
        return os.path.dirname(one.path)
    return (_find_project(one.path, seen) if one.access == "read" else "") or one.path


def _group(groups: dict[str, list[str]], access: str, seen: Seen) -> dict[str, list[str]]:
    """Return {path to grant: paths that were asked for}. If MIN_GROUPED or more files in one
    directory would be granted, grant the directory instead.
    """
    by_parent: dict[str, list[str]] = {}
    for top in groups:
        if not os.path.isdir(top):
            by_parent.setdefault(os.path.dirname(top), []).append(top)
    for parent, files in by_parent.items():
        if len(files) >= MIN_GROUPED and not _reason_against(parent, access, seen.host_home):
            groups.setdefault(parent, []).extend(one for top in files for one in groups.pop(top))
    tops = Tree(groups)
    return {top: found for top, found in groups.items() if not tops.is_below(top)}


def _find_project(path: str, seen: Seen) -> str:
    at = path if os.path.isdir(path) else os.path.dirname(path)
    while not _reason_against(at, "read", seen.host_home):
        if any(os.path.lexists(os.path.join(at, mark)) for mark in PROJECT_MARKS):
            return at
        at = os.path.dirname(at)
    return ""
