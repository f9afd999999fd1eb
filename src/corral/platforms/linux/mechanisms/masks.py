"""Find the paths in granted directories that the target must not see or must not change.

corral *hides* these in every grant: credentials, browser and client data, shell start-up files and
`.env` files. In write grants it *protects* these, which makes them read-only: version-control
directories and the files that they use, editor tasks, direnv files, and client configuration. It
does not mask a path that the user grants by name.

`package.json`, `Makefile` and sources are not protected, because they run only when the user starts
them, and a coding server has to change them.

A mask can be lost during a run; `replaced_files` explains how. A missing path cannot be masked
without creating a file on the host. corral reports such a path if it exists after the run. This
module does not find hard links to a secret, and does not search `node_modules` and `site-packages`.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time

from corral.errors import PolicyError
from corral.paths.followed_links import follow
from corral.paths.mounts import on_disk, read_mounts
from corral.paths.posix import is_below, is_inside
from corral.paths.spelling import true_spelling
from corral.platforms.linux import repositories, searched_directories
from corral.platforms.linux.mechanisms import root_filesystem
from corral.policy import secret_files
from corral.policy.secret_files import is_environment_file
from corral.record import record
from corral.safe_text import shell_word, shown

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from corral.platforms.linux.mechanisms.root_filesystem import Role
    from corral.platforms.linux.searched_directories import SearchedDirectories
    from corral.policy.model import Grant

SECRETS = secret_files.hidden("linux")
AT_HOME = dict.fromkeys(secret_files.protected("linux"), "protect") | dict.fromkeys(SECRETS, "hide")
VERSION_CONTROL = frozenset(secret_files.VERSION_CONTROL)
UNSEARCHED = VERSION_CONTROL | {"node_modules", "site-packages"}
MAX_ENTRIES = 200_000
MAX_SECONDS = 2.0
OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LISTABLE = os.R_OK | os.X_OK
MAX_READ_DEPTH = 2
"""The number of levels that the search enters in a read grant, which may be a whole disk."""
MAX_MASKS = 1000
# The longest path to search, in bytes. The kernel accepts at most 4095, but a target can nest
# directories so deeply that their paths are longer.
MAX_PATH = 4000


@record
class Found:
    """What corral found when it searched the grants.

    - `masks` is ordered from the outermost to the innermost.
    - `absent` lists missing paths that need a mask, and that the target can create.
    - `named` lists paths to warn about. They are repositories, or paths that the settings of a
      repository name. Each of them is a write grant or contains one, so the target can write there,
      and make git run programs.
    - `unsearched` lists the paths that corral could not search, for example because the time for
      the search was over.
    """

    masks: tuple[root_filesystem.Mask, ...] = ()
    absent: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    unsearched: tuple[str, ...] = ()


def find(
    grants: Sequence[Grant], home: str, needed: Sequence[str] = (), empty: Sequence[str] = ()
) -> Found:
    """Find the paths in these grants that have to be hidden or made read-only.

    `needed` lists paths that stay visible, because the program itself has to read them. `empty`
    lists directories that the target sees as empty, so the search skips them.
    """
    search = _Search(grants, home.rstrip("/"), needed)
    directories = [grant for grant in grants if grant.directory]
    search.look_up_home(directories)
    # Protect the files that the user's own git settings name, because git uses them in every
    # repository.
    for path in repositories.find_named(search.home, (), search.home, search.settings):
        search.protect(path)
    for grant in directories:
        search.look_up(grant)
    for grant in directories:
        if os.path.basename(grant.path) not in VERSION_CONTROL:
            search.walk(grant.path, frozenset(empty), writable=grant.access == "write")
    if len(search.found) > MAX_MASKS:
        search.refuse(f"{search.found[-1]}/.git")
    search.deadline = time.monotonic() + MAX_SECONDS
    for directory in search.found:
        search.project(directory)
    return search.result()


class _Search:
    def __init__(self, grants: Sequence[Grant], home: str, needed: Sequence[str]) -> None:
        self.home = true_spelling(home) or home
        self.layers = dict.fromkeys(needed, "read") | {one.path: one.access for one in grants}
        self.writable = [grant.path for grant in grants if grant.access == "write"]
        self.covered: dict[str, tuple[str, Role]] = {}
        self.absent: dict[str, None] = {}
        self.named: dict[str, None] = {}
        self.unsearched: list[str] = []
        self.projects: set[str] = set()
        self.found: list[str] = []
        self.repositories: set[str] = set()
        self.settings = repositories.read_user_settings(home) if self.writable else []
        self.left = MAX_ENTRIES
        self.deadline = time.monotonic() + MAX_SECONDS
        self.user = os.geteuid()

    def look_up_home(self, grants: Sequence[Grant]) -> None:
        """Cover (hide or protect) the known paths (AT_HOME) in this user's home, and in other
        users' homes in grants. Also hide corral's own directories.
        """
        table = read_mounts()
        # Each pair is (a home or a directory in it, the relative path from the home to this
        # directory). For the home itself the relative path is "".
        bases: list[tuple[str, str]] = []
        for home in dict.fromkeys((self.home, *filter(None, map(true_spelling, _accounts())))):
            if home == self.home or any(is_inside(home, grant.path) for grant in grants):
                bases.append((f"{home}/", ""))
            device, top = on_disk(home, table)
            for grant in grants:
                # Compare positions on the disk, not paths, because a part of a home may also be
                # mounted at another path.
                own, place = on_disk(grant.path, table)
                if device and own == device and is_inside(place, top):
                    bases.append((f"{grant.path}/", f"{place}/"[len(top) + 1 :]))
        for base, start in bases:
            for name, kind in AT_HOME.items():
                if name.startswith(start):
                    self.consider(base + name[len(start) :], kind)
        for path in _moved(self.home):
            self.consider(path, "hide")

    def look_up(self, grant: Grant) -> None:
        """Hide the `.env` files in the top directory of a grant. In a write grant, also cover what
        `project` covers. Raise PolicyError if a write grant cannot be listed.
        """
        if grant.access == "write" and not os.access(grant.path, LISTABLE):
            from corral.policy.path_grants import OTHER_USER

            text = f"{shown(grant.path, 200)} cannot be searched for paths that must stay read-only"
            readable = f"make it readable first: chmod u+rx {shell_word(grant.path)}"
            raise PolicyError(text, hint=readable if self.user else OTHER_USER)
        for path in (f"{grant.path}/{name}" for name in secret_files.ENVIRONMENT):
            if os.path.lexists(path) and not os.path.isdir(path):
                self.consider(path, "hide")
        if grant.access == "write":
            self.project(above := grant.path)
            if os.path.basename(grant.path) in VERSION_CONTROL:
                self.repository(grant.path)
            # If the grant is inside a repository, the repository's settings may name files in the
            # grant.
            while above := above.rpartition("/")[0]:
                for name in secret_files.VERSION_CONTROL:
                    if os.path.lexists(f"{above}/{name}"):
                        self.repository(f"{above}/{name}", above)

    def walk(self, top: str, empty: Container[str], *, writable: bool) -> None:
        """Search a grant level by level, so that a huge inner tree does not use up MAX_ENTRIES or
        MAX_SECONDS before the upper levels are searched.
        """
        searched = searched_directories.SearchedDirectories(top, keep=writable)
        level, depth = [top], 0
        while level and (writable or depth < MAX_READ_DEPTH):
            below: list[str] = []
            for at, directory in enumerate(level):
                if self.left < 0 or (at % 64 == 0 and time.monotonic() > self.deadline):
                    self.unsearched += level[at:] + below
                    return
                if directory in empty:
                    continue
                self.left -= 1
                names = searched.find(directory)
                if names is None:
                    names = self._list(directory, searched, writable=writable)
                below += [f"{directory}/{name}" for name in names]
            level, depth = below, depth + 1
        searched.save()

    def _list(self, directory: str, searched: SearchedDirectories, *, writable: bool) -> list[str]:
        """Return the subdirectories to search. Hide `.env` files, and record repositories.

        In a write grant, also hide two kinds of directories:

        - directories that this user cannot list: the target runs as the same user, and could make
          them readable again
        - directories that have just disappeared, or become a file or a symlink: the target of
          another run could move them back after the search
        """
        fd = -1
        try:
            if len(directory) * 4 > MAX_PATH and len(os.fsencode(directory)) > MAX_PATH:
                raise OSError(errno.ENAMETOOLONG, directory)
            # From now on use this descriptor instead of the path, because the target of another run
            # could replace the directory.
            fd = os.open(directory, OPEN_FLAGS)
            seen = os.fstat(fd)
            is_own = seen.st_uid == self.user and seen.st_mode & 0o500 == 0o500
            if writable and not is_own and not os.access(directory, LISTABLE):
                raise PermissionError(directory)
            names, inner = searched.list_names(fd, seen, max(0, self.left) + 1)
            self.left -= len(names)
            below = [name for name in inner if name not in UNSEARCHED]
            # Most secrets have a name that begins with ".", a repository has `.git` or `HEAD`, and
            # a name that is not ASCII may be another spelling of such a name. Look for these in all
            # names at once, because most directories have none of them.
            text = "/".join(("", *names)).lower()
            is_plain = "/." not in text and "/head" not in text and text.isascii()
            is_plain = is_plain or not self._cover(directory, fd, {*names}.difference(inner))
            if self.left < 0:
                self.unsearched.append(directory)
            elif is_plain:
                searched.add(fd, seen, below)
            return below
        except (PermissionError, FileNotFoundError, NotADirectoryError):
            if writable:
                self.covered[directory] = "hide", ""
        except OSError:
            self.unsearched.append(directory)
        finally:
            if fd >= 0:
                os.close(fd)
        return []

    def _cover(self, directory: str, fd: int, files: Iterable[str]) -> bool:
        """Hide the `.env` files in a directory. Return whether it has such files or is a
        repository.

        Record a repository that the target can write to, so that `project` covers it later.
        """
        secrets = [name for name in files if is_environment_file(name.lower())]
        for path in (f"{directory}/{name}" for name in secrets):
            if not os.path.isdir(path):
                self.consider(path, "hide")
        is_repository = any(_has(fd, name) for name in VERSION_CONTROL)
        is_repository = is_repository or all(_has(fd, name) for name in secret_files.BARE)
        if is_repository and self._layer_above(f"{directory}/.git") == "write":
            self.found.append(directory)
        return is_repository or bool(secrets)

    def project(self, top: str) -> None:
        """Cover a project's repository, and the files that programs run without asking the user."""
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
        if all(os.path.lexists(f"{top}/{name}") for name in secret_files.BARE):
            self.repository(top)

    def repository(self, entry: str, top: str = "") -> None:
        """Cover a version-control directory, and the directories and files that it uses."""
        if time.monotonic() > self.deadline:
            self.consider(entry, "protect", role="repository")
            self.unsearched.append(entry)
            return
        directories = repositories.find_directories(follow(entry)[1] or entry)
        for path in (entry, *directories):
            named = self._is_named(path, entry, directories)
            self.protect(path, "repository", named=named)
            if path not in self.repositories:
                self.repositories.add(path)
                for name in repositories.find_run_files(path):
                    self.consider(name, "protect", role="named" if named else "")
        for path in repositories.find_named(top or entry, directories, self.home, self.settings):
            self.protect(path)
        submodules = repositories.find_submodules(top, directories) if top else ()
        for count, path in enumerate(submodules):
            if count == MAX_MASKS:
                self.refuse(path)
            if os.path.lexists(f"{path}/.git"):
                self.project(path)
            else:
                self.protect(path)

    def protect(self, path: str, role: Role = "", *, named: bool = False) -> None:
        """Make a path read-only, unless the user granted its repository by name (`named`).

        If the path is a write grant or contains one, the target can still write there, so record
        the path for a warning.
        """
        if not named:
            self.consider(path, "protect", role=role)
        if any(is_inside(grant, path) for grant in self.writable):
            self.named[path] = None

    def _is_named(self, path: str, entry: str, directories: Sequence[str]) -> bool:
        """Return whether the user granted the path's repository by name, for writing.

        An example is a write grant for `.git` itself instead of the project around it.
        """
        return any(
            os.path.basename(grant) in VERSION_CONTROL
            or (grant in directories and not is_below(entry, grant))
            for grant in self.writable
            if is_inside(path, grant)
        )

    def consider(self, path: str, kind: str, *, role: Role = "") -> None:
        """Cover a path if it exists. Otherwise record it as absent if the target can create it.

        If the path is a symlink, cover the file that it points to, and make the symlink itself
        read-only.
        """
        if not os.path.lexists(path):
            if self._layer_above(path) == "write":
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
        """Return the access that the innermost grant or mask around a path gives."""
        while path := path.rpartition("/")[0]:
            if path in self.layers:
                return self.layers[path]
        return ""

    def refuse(self, path: str) -> None:
        """Raise PolicyError because there are too many masks.

        `path` is one of the masked paths. The hint names the directory that contains it.
        """
        above, flag = os.path.dirname(path), "--write" if self.writable else "--read"
        less = f"grant less, such as {flag} {above}"
        if above in self.layers:
            less = f"grant only some of the directories in {above}"
        text = f"the grants contain more than {MAX_MASKS} paths to hide or protect"
        raise PolicyError(text, hint=less)

    def result(self) -> Found:
        """Return the masks.

        Hide only paths that the target would see. Protect only paths that the target could change.
        """
        masks: list[root_filesystem.Mask] = []
        for path in sorted(self.covered, key=lambda path: (path.count("/"), path)):
            kind, role = self.covered[path]
            wanted = ("read", "write", "protect") if kind == "hide" else ("write",)
            if path in self.layers or self._layer_above(path) not in wanted:
                continue
            try:
                seen = os.lstat(path)
            except FileNotFoundError:
                continue  # another run's target has removed the path
            self.layers[path] = kind
            if len(masks) == MAX_MASKS:
                self.refuse(path)
            masks.append(
                root_filesystem.Mask(
                    path=path, kind="hide" if kind == "hide" else "protect", role=role,
                    directory=stat.S_ISDIR(seen.st_mode), device=seen.st_dev, inode=seen.st_ino,
                )
            )  # fmt: skip
        return Found(
            masks=tuple(masks),
            absent=tuple(
                path for path in sorted(self.absent) if self._layer_above(path) == "write"
            ),
            named=tuple(self.named),
            unsearched=tuple(self.unsearched),
        )


def _has(fd: int, name: str) -> bool:
    """Return whether a directory contains a name.

    Ask the kernel instead of comparing names, because some file systems ignore case or invisible
    characters.
    """
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _accounts() -> list[str]:
    """Return the homes in /etc/passwd.

    Do not ask directory servers such as LDAP for more users, because that could take seconds.
    """
    try:
        with open("/etc/passwd", encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.split(":") for line in file]
    except OSError:
        return []
    return [row[5].rstrip("/") for row in rows if len(row) > 6 and row[5].startswith("/")]


def _moved(home: str) -> Iterator[str]:
    """Yield corral's own directories.

    If XDG variables name other directories for settings and data, also yield the secret paths
    there.
    """
    from corral.directories import directories, target_homes

    own = directories(home=home)
    yield from (own.config, own.state, own.cache, target_homes())
    for variable, usual in (("XDG_CONFIG_HOME", ".config/"), ("XDG_DATA_HOME", ".local/share/")):
        base = os.environ.get(variable, "").rstrip("/")
        moved = [name.removeprefix(usual) for name in SECRETS if name.startswith(usual)]
        yield from (f"{base}/{name}" for name in moved if base.startswith("/"))
