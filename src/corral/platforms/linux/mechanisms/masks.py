"""Secrets and self-starting files inside granted directories: hidden, or held read-only.

*Hidden*, in every grant: what logs in somewhere, what browsers and clients remember, shell start-up
files. *Protected*, in write grants: what runs on the user's machine by itself, without being asked
for: hooks, editor tasks, direnv, client configuration. What a grant of its own names is left alone.

Not protected, because they run only when somebody asks for them by name, and changing them is what
a coding server is for: `package.json`, `Makefile`, sources. `.github/workflows` runs elsewhere,
after a push of the user's. `.git/info/attributes` only chooses among `.git/config`'s drivers.

Limits: a name that does not exist cannot be covered without leaving something behind, so it is only
told afterwards (`protected_absent`, `created`). Hard links to a secret, and repositories deeper
than two levels or beyond the first 2000 directory entries of a grant, are not looked for.
"""

from __future__ import annotations

import os
import sys

from corral.errors import PolicyError
from corral.paths.mounts import on_disk, read_mounts
from corral.paths.posix import is_below, is_inside
from corral.platforms.linux.mechanisms import root_filesystem
from corral.policy import secret_files

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Literal

    from corral.policy.model import Grant

    Kind = Literal["hide", "protect"]
    Candidate = tuple[str, Kind]

SECRETS = secret_files.hidden("linux")
STARTERS = secret_files.protected("linux")
WORKTREE = ("commondir", "config.worktree", "gitdir")

UNSEARCHED = frozenset({"node_modules", ".git"})
MOST_ENTRIES = 2000
DEEPEST = 2
MODULES_DEPTH = 3
MOST_LINKS = 40  # as the kernel's own MAXSYMLINKS
MOST_SIBLINGS = 1000


def find(
    grants: Sequence[Grant], home: str, needed: Sequence[str] = ()
) -> tuple[root_filesystem.Mask, ...]:
    """The masks for these grants, in the order in which they are to be applied.

    `needed` is what the program itself has to read: not hidden together with a secret around it.
    """
    search = _Search(grants, needed)
    for path, kind in _candidates(search.directories, home):
        if os.path.lexists(path):
            search.consider(path, kind)
    return search.masks()


def protected_absent(grants: Sequence[Grant], home: str) -> tuple[str, ...]:
    """Names that would be covered if they existed, where the target can create them."""
    search = _Search(grants, ())
    if not any(grant.access == "write" for grant in search.directories):
        return ()
    covered = [mask.path for mask in find(grants, home)]
    found: dict[str, None] = {}
    for path, _ in _candidates(search.directories, home):
        end = follow(path)[1]
        grant = search.innermost(end)
        if grant is None or grant.access != "write" or os.path.lexists(end):
            continue
        if not any(is_below(end, mask) for mask in covered):
            found[end] = None
    return tuple(sorted(found))


def created(names: Iterable[str]) -> tuple[str, ...]:
    """Those of `protected_absent` that exist by now."""
    return tuple(name for name in names if os.path.lexists(name))


def follow(path: str) -> tuple[list[str], str]:
    """Every link on the way, and where the path ends, existing or not ("": in a circle)."""
    links: list[str] = []
    done = ""
    left = path.split("/")[::-1]
    while left:
        name = left.pop()
        if name in {"", "."}:
            continue
        if name == "..":
            done = done.rpartition("/")[0]
            continue
        here = f"{done}/{name}"
        try:
            text = os.readlink(here)
        except OSError:
            done = here
            continue
        links.append(here)
        if len(links) > MOST_LINKS:
            return links, ""
        if text.startswith("/"):
            done = ""
        left += text.split("/")[::-1]
    return links, done or "/"


class _Search:
    def __init__(self, grants: Sequence[Grant], needed: Sequence[str]) -> None:
        self.directories = [grant for grant in grants if grant.directory]
        self.named = {*(grant.path for grant in grants), *needed}
        self.writable = {grant.path for grant in grants if grant.access == "write"}
        self.found: dict[str, Kind] = {}

    def innermost(self, path: str) -> Grant | None:
        """The grant whose directory holds `path` and is not `path` itself."""
        around = [grant for grant in self.directories if is_below(path, grant.path)]
        return max(around, key=lambda grant: len(grant.path), default=None)

    def consider(self, path: str, kind: Kind) -> None:
        """A link is bound onto itself, so that it stays what it is; its end gets the mask."""
        links, end = follow(path)
        for link in links:
            self._add(link, "protect")
        if end and os.path.lexists(end):
            self._add(end, kind)

    def _add(self, path: str, kind: Kind) -> None:
        grant = self.innermost(path)
        exempt = self.named if kind == "hide" else self.writable
        if grant is None or path in exempt or (kind == "protect" and grant.access != "write"):
            return
        if any(is_below(name, path) for name in exempt):
            # A mask would cover what was named below it: everything around that is masked instead.
            for sibling in _siblings(path):
                self.consider(sibling, kind)
        elif self.found.get(path) != "hide":
            self.found[path] = kind

    def masks(self) -> tuple[root_filesystem.Mask, ...]:
        """Outer masks first; each anchor once, with the first mask that needs it."""
        kept: dict[str, Kind] = {}
        anchored: set[str] = set()
        masks: list[root_filesystem.Mask] = []
        for path in sorted(self.found, key=lambda path: (path.count("/"), path)):
            kind = self.found[path]
            around = [mask for mask in kept if is_below(path, mask)]
            if any(kept[mask] in {"hide", kind} for mask in around):
                continue
            kept[path] = kind
            anchors = [
                above
                for above in self._between(path)
                if above not in anchored and not any(is_inside(above, mask) for mask in around)
            ]
            anchored.update(anchors)
            directory = os.path.isdir(path) and not os.path.islink(path)
            masks.append(
                root_filesystem.Mask(
                    path=path, kind=kind, directory=directory, anchors=tuple(anchors)
                )
            )
        return tuple(masks)

    def _between(self, path: str) -> Iterator[str]:
        """Directories above the mask that the target could rename, top down.

        They begin below the outermost write grant; a grant's own root is a mount point already.
        Files cannot be renamed across an anchor (EXDEV): programs then copy, as between disks.
        """
        tops = [grant.path for grant in self.directories if grant.access == "write"]
        outer = min((top for top in tops if is_below(path, top)), key=len, default=None)
        if outer is None:
            return
        at = outer
        for name in path[len(outer) + 1 :].split("/")[:-1]:
            at = f"{at}/{name}"
            grant = self.innermost(at)
            if at not in self.named and grant is not None and grant.access == "write":
                yield at


def _siblings(path: str) -> list[str]:
    names = _names(path)
    if len(names) > MOST_SIBLINGS:
        raise PolicyError(
            f"{path} holds secrets, and too many files to hide around what is needed in it",
            hint=f"grant less: not a directory that holds {path}",
        )
    return [f"{path}/{name}" for name in names]


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _candidates(grants: Sequence[Grant], home: str) -> Iterator[Candidate]:
    """Every path that may need a mask; most of them do not exist."""
    for base in _homes(grants, home):
        for name in SECRETS:
            yield f"{base}/{name}", "hide"
        for name in STARTERS:
            yield f"{base}/{name}", "protect"
    yield from _parts(grants, (home.rstrip("/"), *_accounts()))
    for path in _moved(home):
        yield path, "hide"
    for grant in grants:
        directories, environment_files = _look(grant.path)
        for path in environment_files:
            yield path, "hide"
        if grant.access == "write":
            yield from _projects(grant.path, directories)


def _homes(grants: Sequence[Grant], home: str) -> Iterator[str]:
    """The caller's home, others' as far as they are granted, each also by its name in a grant."""
    known = dict.fromkeys((home.rstrip("/"), *_accounts()))
    for base in known:
        related = [
            grant for grant in grants if is_inside(base, grant.path) or is_inside(grant.path, base)
        ]
        if base == home.rstrip("/") or related:
            yield base
        for grant in grants:
            if grant not in related:
                yield from _alias(base, grant)


def _accounts() -> list[str]:
    """From the file alone: asking a directory server could take seconds."""
    try:
        with open("/etc/passwd", encoding="utf-8", errors="surrogateescape") as file:
            fields = [line.rstrip("\n").split(":") for line in file]
    except OSError:
        return []
    homes = [row[5].rstrip("/") for row in fields if len(row) > 6]
    return [path for path in homes if path.startswith("/")]


def _alias(base: str, grant: Grant) -> Iterator[str]:
    """A bind mount gives a home a second name: by inode, the grant may lie above it or in it."""
    same = _identity(base)
    for at in _upwards(grant.path):
        if same is not None and _identity(at) == same:
            yield at
    for at in _upwards(base):
        if _identity(at) == (grant.device, grant.inode):
            yield grant.path + base[len(at) :]


def _parts(grants: Sequence[Grant], homes: Iterable[str]) -> Iterator[Candidate]:
    """A part of a home that is mounted a second time: nothing above it there is the home."""
    table = read_mounts()
    places = dict.fromkeys(on_disk(home, table) for home in homes if home)
    for grant in grants:
        device, place = on_disk(grant.path, table)
        for own, top in places:
            if device != own or not is_below(place, top):
                continue
            below = f"{place[len(top) + 1 :]}/"
            for name in (*SECRETS, *STARTERS):
                if name.startswith(below):
                    kind: Kind = "hide" if name in SECRETS else "protect"
                    yield f"{grant.path}/{name.removeprefix(below)}", kind


def _upwards(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _moved(home: str) -> Iterator[str]:
    """The directories of corral itself, and what XDG variables have put elsewhere."""
    from corral.directories import directories

    own = directories(home=home)
    yield from (own.config, own.state, own.cache)
    for variable, usual in (("XDG_CONFIG_HOME", ".config/"), ("XDG_DATA_HOME", ".local/share/")):
        base = os.environ.get(variable, "")
        if base.startswith("/"):
            for name in SECRETS:
                if name.startswith(usual):
                    yield f"{base.rstrip('/')}/{name.removeprefix(usual)}"


def _look(top: str) -> tuple[list[str], list[str]]:
    """Directories up to two levels below a grant, and the `.env` files of the first level.

    Bounded: a grant may be a whole disk, and this happens before every run. Near levels come first.
    """
    directories, environment_files = [top], list[str]()
    level, left = [top], MOST_ENTRIES
    for _ in range(DEEPEST):
        below: list[str] = []
        for directory in level:
            for entry in _entries(directory):
                left -= 1
                if left < 0:
                    return directories + below, environment_files
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in UNSEARCHED:
                        below.append(entry.path)
                elif secret_files.is_environment_file(entry.name) and not os.path.isdir(entry.path):
                    environment_files.append(entry.path)
        directories += below
        level = below
    return directories, environment_files


def _entries(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except OSError:
        return


def _projects(top: str, directories: Iterable[str]) -> Iterator[Candidate]:
    for directory in directories:
        git = f"{directory}/.git"
        bare = os.path.lexists(f"{directory}/HEAD") and os.path.lexists(f"{directory}/objects")
        if directory != top and not bare and not os.path.lexists(git):
            continue
        for name in secret_files.PROJECT:
            yield f"{directory}/{name}", "protect"
        if bare:
            yield from _repository(directory)
        if os.path.isfile(git):
            # A worktree's or a submodule's: it says where configuration and hooks are.
            yield git, "protect"
        yield from _repository(git)


def _repository(git: str) -> Iterator[Candidate]:
    for name in secret_files.GIT:
        yield f"{git}/{name}", "protect"
    for name in _names(f"{git}/worktrees")[:MOST_ENTRIES]:
        for file in WORKTREE:
            yield f"{git}/worktrees/{name}/{file}", "protect"
    level = [f"{git}/modules"]
    for _ in range(MODULES_DEPTH):
        # A submodule's name may have slashes in it.
        level = [f"{above}/{name}" for above in level for name in _names(above)][:MOST_ENTRIES]
        for module in level:
            if os.path.lexists(f"{module}/HEAD"):
                for name in secret_files.GIT:
                    yield f"{module}/{name}", "protect"
        level = [module for module in level if not os.path.lexists(f"{module}/HEAD")]
