"""Find the names inside granted directories that are hidden from the target, or read-only for it.

*Hidden*, in every grant: what logs in somewhere, what browsers and clients remember, shell start-up
files, `.env` files. *Protected*, in write grants: version-control directories and what they lead
to, editor tasks, direnv, client configuration. What a grant of its own names is left alone.

Not protected, because they run only when somebody asks for them by name, and changing them is what
a coding server is for: `package.json`, `Makefile`, sources.

Masks are hygiene: see `replaced_files`. A name that does not exist cannot be covered without
leaving something behind, so it is reported if it exists after the run. Hard links to a secret, and
what is in `node_modules` or `site-packages`, are not looked for.
"""

from __future__ import annotations

import os
import sys
import time

from corral.errors import PolicyError
from corral.paths.mounts import on_disk, read_mounts
from corral.paths.posix import is_below, is_inside
from corral.platforms.linux import repositories
from corral.platforms.linux.mechanisms import root_filesystem
from corral.policy import secret_files
from corral.record import record
from corral.safe_text import shown

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corral.platforms.linux.mechanisms.root_filesystem import Role
    from corral.policy.model import Grant

SECRETS = secret_files.hidden("linux")
STARTERS = secret_files.protected("linux")
VERSION_CONTROL = frozenset(secret_files.VERSION_CONTROL)
UNSEARCHED = VERSION_CONTROL | {"node_modules", "site-packages"}
BARE = frozenset({"HEAD", "objects"})
MARKS = VERSION_CONTROL | BARE
MAX_ENTRIES = 200_000
MAX_SECONDS = 2.0
FULL_DEPTH = 2
"""So many levels are listed whole, and of a read grant no more are searched: it may be a disk."""
NO_SUBDIRECTORIES = 2
"""The link count of such a directory: its name and its `.`; each `..` in it would be one more."""
MAX_MASKS = 1000
MAX_LINKS = 40  # as the kernel's own MAXSYMLINKS


@record
class Found:
    """`masks` come outermost first. `absent` are names that would be covered if they existed, where
    the target can create them; `named` are repositories that the target may write.
    """

    masks: tuple[root_filesystem.Mask, ...] = ()
    absent: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    unsearched: tuple[str, ...] = ()


def find(grants: Sequence[Grant], home: str, needed: Sequence[str] = ()) -> Found:
    """Return what to cover in these grants. The program itself has to read what is `needed`."""
    search = _Search(grants, home.rstrip("/"), needed)
    directories = [grant for grant in grants if grant.directory]
    search.look_up_home(directories)
    search.look_up_user_settings()
    for grant in directories:
        search.look_up(grant)
    for grant in directories:
        if os.path.basename(grant.path) not in VERSION_CONTROL:
            search.walk(grant.path, writable=grant.access == "write")
    search.enter_found()
    return search.result()


class _Search:
    def __init__(self, grants: Sequence[Grant], home: str, needed: Sequence[str]) -> None:
        self.home = home
        self.layers = dict.fromkeys(needed, "read") | {one.path: one.access for one in grants}
        self.writable = [grant.path for grant in grants if grant.access == "write"]
        self.covered: dict[str, tuple[str, Role]] = {}
        self.absent: dict[str, None] = {}
        self.named: dict[str, None] = {}
        self.unsearched: list[str] = []
        self.projects: set[str] = set()
        self.found: list[tuple[str, bool]] = []
        self.repositories: set[str] = set()
        self.settings = repositories.read_user_settings(home) if self.writable else []
        self.left = MAX_ENTRIES
        self.deadline = time.monotonic() + MAX_SECONDS

    def look_up_home(self, grants: Sequence[Grant]) -> None:
        """Consider the known names in homes: the caller's, and those that are in grants."""
        table = read_mounts()
        for home in dict.fromkeys((self.home, *_accounts())):
            if home == self.home or any(is_inside(home, grant.path) for grant in grants):
                self._consider_home(f"{home}/", "")
            device, top = on_disk(home, table)
            for grant in grants:
                # By the path on the disk: a part of a home may be mounted a second time.
                own, place = on_disk(grant.path, table)
                if device and own == device and is_inside(place, top):
                    below = f"{place}/"[len(top) + 1 :]
                    self._consider_home(f"{grant.path}/", below)
        for path in _moved(self.home):
            self.consider(path, "hide")

    def _consider_home(self, base: str, below: str) -> None:
        for kind, names in (("hide", SECRETS), ("protect", STARTERS)):
            for name in names:
                if name.startswith(below):
                    self.consider(base + name[len(below) :], kind)

    def look_up_user_settings(self) -> None:
        """Consider what the user's own settings name, for every repository of the user."""
        for path in repositories.find_named(self.home, (), self.home, self.settings):
            self.consider(path, "protect")

    def look_up(self, grant: Grant) -> None:
        """Consider the names with a fixed place in a grant, whatever else is in it."""
        if grant.access == "write" and not _is_open(grant.path):
            raise PolicyError(
                f"{shown(grant.path, 200)} cannot be searched for what has to stay read-only",
                hint=f"make it readable first: chmod u+rx {shown(grant.path, 200)}",
            )
        for name in secret_files.ENVIRONMENT:
            if not os.path.isdir(f"{grant.path}/{name}"):
                self.consider(f"{grant.path}/{name}", "hide", told=False)
        if grant.access == "write":
            self.project(grant.path)
            if os.path.basename(grant.path) in VERSION_CONTROL or _is_bare(grant.path):
                self.repository(grant.path)
            self._look_above(grant.path)

    def _look_above(self, path: str) -> None:
        """Consider the repositories around a grant, whose settings may lead into it."""
        while path := path.rpartition("/")[0]:
            for name in secret_files.VERSION_CONTROL:
                if os.path.lexists(f"{path}/{name}"):
                    self.repository(f"{path}/{name}", path)

    def walk(self, top: str, *, writable: bool) -> None:
        """Search a grant level by level, so that what is planted deep down hides nothing above."""
        level, depth = [(top, False)], 0
        while level and (writable or depth < FULL_DEPTH):
            below: list[tuple[str, bool]] = []
            for at, (directory, counted) in enumerate(level):
                if self.left < 0 or (at % 64 == 0 and time.monotonic() > self.deadline):
                    self.unsearched += [path for path, _ in level[at:] + below]
                    return
                if writable and not _is_open(directory):
                    # The target has the same user and could open it again.
                    self.covered[directory] = "hide", ""
                    continue
                links = _count_links(directory)
                if counted and links == NO_SUBDIRECTORIES and depth >= FULL_DEPTH:
                    self._look_up_leaf(directory)
                    continue
                found: list[str] = []
                marks = self._scan(directory, found)
                # Not every file system counts subdirectories as links.
                counts = links == NO_SUBDIRECTORIES + len(found)
                below += [(path, counts) for path in found if _last(path) not in UNSEARCHED]
                if writable:
                    self._mark(directory, marks, is_top=directory == top)
            level, depth = below, depth + 1

    def _look_up_leaf(self, directory: str) -> None:
        """Search a directory that has none in it by its names alone, which is cheaper."""
        try:
            names = os.listdir(directory)
        except OSError:
            names = []
        self.left -= len(names)
        for name in names:
            if name.startswith(".env") and secret_files.is_environment_file(name):
                self.consider(f"{directory}/{name}", "hide")
        if not VERSION_CONTROL.isdisjoint(names):
            self.found.append((directory, False))

    def _mark(self, directory: str, marks: set[str], *, is_top: bool) -> None:
        if marks & VERSION_CONTROL:
            self.found.append((directory, False))
        if marks >= BARE and not is_top:
            self.found.append((directory, True))

    def enter_found(self) -> None:
        """Consider the repositories that were found, after their number is known to be bounded."""
        if len(self.found) > MAX_MASKS:
            self._refuse(f"{self.found[-1][0]}/.git")
        self.deadline = time.monotonic() + MAX_SECONDS
        for directory, is_bare in self.found:
            if is_bare:
                self.repository(directory)
            else:
                self.project(directory)

    def _scan(self, directory: str, below: list[str]) -> set[str]:
        """Collect the directories, and cover `.env` files; return the marks of repositories."""
        marks: set[str] = set()
        left = self.left
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    left -= 1
                    name = entry.name
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.path)
                    elif name[0] == "." and _is_environment_file(entry):
                        self.consider(entry.path, "hide")
                    if name in MARKS:
                        marks.add(name)
                    if left < 0:
                        self.unsearched.append(directory)
                        break
        except (PermissionError, FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            self.unsearched.append(directory)
        self.left = left
        return marks

    def project(self, top: str) -> None:
        """Consider what runs by itself in a project, and its repository."""
        if top in self.projects:
            return
        self.projects.add(top)
        for name in secret_files.PROJECT:
            self.consider(f"{top}/{name}", "protect")
        for name in secret_files.VERSION_CONTROL:
            if os.path.lexists(f"{top}/{name}"):
                self.repository(f"{top}/{name}", top)
            else:
                self.consider(f"{top}/{name}", "protect")

    def repository(self, entry: str, top: str = "") -> None:
        """Consider a version-control directory, and where it leads."""
        if time.monotonic() > self.deadline:
            self.consider(entry, "protect", role="repository")
            self.unsearched.append(entry)
            return
        directories = repositories.find_directories(follow(entry)[1] or entry)
        for path in (entry, *directories):
            named = self._is_named(path, entry, directories)
            if not named:
                self.consider(path, "protect", role="repository")
            self._note_named(path)
            if path not in self.repositories:
                self.repositories.add(path)
                for name in repositories.find_run_files(path):
                    self.consider(name, "protect", role="named" if named else "")
        for path in repositories.find_named(top or entry, directories, self.home, self.settings):
            self.consider(path, "protect")
            self._note_named(path)

    def _note_named(self, path: str) -> None:
        if any(is_inside(grant, path) for grant in self.writable):
            self.named[path] = None

    def _is_named(self, path: str, entry: str, directories: Sequence[str]) -> bool:
        """Return whether the user granted a path for writing by naming its repository."""
        for grant in self.writable:
            is_repository = os.path.basename(grant) in VERSION_CONTROL
            is_repository |= grant in directories and not is_below(entry, grant)
            if is_repository and is_inside(path, grant):
                return True
        return False

    def consider(self, path: str, kind: str, *, role: Role = "", told: bool = True) -> None:
        """A link is bound onto itself, so that it stays what it is; its end gets the mask."""
        if not os.path.lexists(path):
            if told and self._layer_above(path) == "write":
                self.absent[path] = None
            return
        links, end = follow(path)
        for link in links:
            self.covered.setdefault(link, ("protect", role))
        if end and os.path.lexists(end):
            known = self.covered.get(end, ("", ""))
            if known[0] != "hide" and (kind == "hide" or known[1] != "repository"):
                self.covered[end] = kind, role
        elif end and self._layer_above(end) == "write":
            self.absent[end] = None

    def _layer_above(self, path: str) -> str:
        """Return the access of the innermost grant or mask around a path."""
        while path := path.rpartition("/")[0]:
            if path in self.layers:
                return self.layers[path]
        return ""

    def _refuse(self, path: str) -> None:
        less = os.path.dirname(path)
        access = "--write" if self.writable else "--read"
        raise PolicyError(
            f"there are too many names to hide or protect in the grants, more than {MAX_MASKS}",
            hint="grant less, such as the directories in it one by one"
            if less in self.layers
            else f"grant less, such as {access} {less}",
        )

    def result(self) -> Found:
        """Keep the masks that something shows or lets change, and that no outer mask covers."""
        masks: list[root_filesystem.Mask] = []
        for path in sorted(self.covered, key=lambda path: (path.count("/"), path)):
            kind, role = self.covered[path]
            wanted = ("read", "write", "protect") if kind == "hide" else ("write",)
            if path in self.layers or self._layer_above(path) not in wanted:
                continue
            self.layers[path] = kind
            if len(masks) == MAX_MASKS:
                self._refuse(path)
            seen = os.lstat(path)
            masks.append(
                root_filesystem.Mask(
                    path=path,
                    kind="hide" if kind == "hide" else "protect",
                    directory=os.path.isdir(path) and not os.path.islink(path),
                    role=role,
                    device=seen.st_dev,
                    inode=seen.st_ino,
                )
            )
        absent = [path for path in self.absent if self._layer_above(path) == "write"]
        return Found(
            masks=tuple(masks),
            absent=tuple(sorted(absent)),
            named=tuple(self.named),
            unsearched=tuple(self.unsearched),
        )


def follow(path: str) -> tuple[list[str], str]:
    """Return every link on the way, and where the path ends, existing or not ("": in a circle)."""
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
        if len(links) > MAX_LINKS:
            return links, ""
        if text.startswith("/"):
            done = ""
        left += text.split("/")[::-1]
    return links, done or "/"


def _is_environment_file(entry: os.DirEntry[str]) -> bool:
    return secret_files.is_environment_file(entry.name) and not entry.is_dir()


def _is_open(directory: str) -> bool:
    return os.access(directory, os.R_OK | os.X_OK)


def _count_links(directory: str) -> int:
    try:
        return os.lstat(directory).st_nlink
    except OSError:
        return 0


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _is_bare(directory: str) -> bool:
    return all(os.path.lexists(f"{directory}/{name}") for name in BARE)


def _accounts() -> list[str]:
    """From the file alone: asking a directory server could take seconds."""
    try:
        with open("/etc/passwd", encoding="utf-8", errors="surrogateescape") as file:
            fields = [line.rstrip("\n").split(":") for line in file]
    except OSError:
        return []
    homes = [row[5].rstrip("/") for row in fields if len(row) > 6]
    return [path for path in homes if path.startswith("/")]


def _moved(home: str) -> Iterator[str]:
    """Yield the directories of corral itself, and what XDG variables have put elsewhere."""
    from corral.directories import directories

    own = directories(home=home)
    yield from (own.config, own.state, own.cache)
    for variable, usual in (("XDG_CONFIG_HOME", ".config/"), ("XDG_DATA_HOME", ".local/share/")):
        base = os.environ.get(variable, "")
        if base.startswith("/"):
            for name in SECRETS:
                if name.startswith(usual):
                    yield f"{base.rstrip('/')}/{name.removeprefix(usual)}"
