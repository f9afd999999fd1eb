"""Find corral's own files: its directories, code and programs, and the modules of its Python.

If a target could write one of these files, the target's code would run outside the sandbox the next
time corral is started.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.paths.followed_links import follow
from corral.policy.path_grants import Refused, contains, make_grant
from corral.record import record
from corral.safe_text import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from corral.paths.mounts import Mounts
    from corral.policy.model import Access, Grant
    from corral.policy.path_grants import Identity

PACKAGES = ("corral", "yaml", "_yaml")
MAX_ENTRIES = 200_000
"""The maximum number of files and directories in a write grant that are searched for hard links to
corral's code. A grant that contains more is refused.
"""
ELSEWHERE = "grant another directory, or a smaller one"
REINSTALL = (
    "grant a smaller directory, or, in corral's clone: "
    "uv tool install --reinstall --link-mode=copy ."
)


@record
class Protected:
    """A path that the target must not write.

    If `reads` is true, the target must not read it either. If `parts` is true, paths inside it may
    be granted, but not the path itself. corral grants paths inside it to the installers of
    packages, which run in a sandbox.
    """

    path: str
    what: str
    reads: bool = False
    parts: bool = False


def check_own(grant: Grant, protected: Iterable[Protected], mounts: Mounts) -> None:
    """Refuse a grant that would let the target write one of the `protected` paths, such as corral's
    code, or read one that it must not read.
    """
    for item in protected:
        path = os.path.realpath(item.path)
        if os.path.dirname(path) == path:
            continue
        within = contains(path, grant.path, mounts)
        if within and item.parts and not contains(grant.path, path, mounts):
            continue
        if within and (item.reads or grant.access == "write"):
            raise Refused(f"{shown(grant.path, 200)} belongs to {item.what}", ELSEWHERE)
        if grant.access != "write":
            continue
        # A write grant must contain neither the file nor a symlink through which corral finds it,
        # because a target could make the symlink point to a different file.
        for name in (path, *follow(item.path)[0]):
            if contains(grant.path, name, mounts):
                raise Refused(
                    f"{shown(grant.path, 200)} contains {item.what} ({shown(name, 200)})", ELSEWHERE
                )


def is_refused(access: Access, path: str, protected: Iterable[Protected], mounts: Mounts) -> bool:
    try:
        check_own(make_grant(access, path), protected, mounts)
    except (Refused, OSError):
        return True
    return False


def own_paths(home: str) -> tuple[Protected, ...]:
    """Return the paths of corral's own files, and the directories that contain the private
    directories of runs.
    """
    from corral.directories import STAGING, WORK_DIRECTORIES, directories, target_homes

    kept = directories(home=home)
    staging, packages = kept.cache + STAGING, "corral's packages"
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    loaded = dict.fromkeys(os.path.abspath(path) for path in _import_paths())
    homes = [target_homes()] if sys.platform == "linux" and os.geteuid() == 0 else []
    runs = [] if sys.platform == "win32" else [WORK_DIRECTORIES]
    return (
        *(Protected(path=path, what="the homes of servers", reads=True) for path in homes),
        Protected(path=kept.config, what="corral's configuration", reads=True),
        Protected(path=kept.state, what="corral's state", reads=True),
        Protected(path=kept.cache, what="corral's cache", reads=True),
        Protected(path=staging, what=packages, reads=True, parts=True),
        *(Protected(path=path, what="private directories of runs") for path in runs),
        Protected(path=_code(), what="corral's code"),
        *(Protected(path=path, what="corral's interpreter") for path in sorted(prefixes)),
        *([Protected(path=sys.executable, what="corral's interpreter")] if sys.executable else []),
        *(Protected(path=path, what="corral's program") for path in _programs()),
        *(Protected(path=path, what="corral's modules (sys.path, PYTHONPATH)") for path in loaded),
        *([Protected(path=sys.pycache_prefix, what="corral's code")] if sys.pycache_prefix else []),
    )


def _code() -> str:
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _programs() -> list[str]:
    """Return the paths where corral's program can be: the program that was started, `corral` beside
    the Python interpreter, and the first `corral` on PATH.
    """
    name = "corral.exe" if sys.platform == "win32" else "corral"
    search = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = [os.path.abspath(os.path.join(directory, name)) for directory in search]
    first = [path for path in found if os.path.lexists(path)][:1]
    started = os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else ""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    return list(dict.fromkeys(path for path in (started, beside, *first) if os.path.lexists(path)))


def _import_paths() -> Iterator[str]:
    """Yield the directories from which Python imports modules before or while corral starts.

    This includes directories that are no longer in `sys.path`. The entry point removes PYTHONPATH
    and the user's site-packages from it, but by then Python has already loaded `encodings`,
    `sitecustomize` and `.pth` files from them.
    """
    yield from filter(None, sys.path)
    if not sys.flags.ignore_environment and (named := os.environ.get("PYTHONPATH")):
        yield from (path or os.curdir for path in named.split(os.pathsep))
    site = sys.modules.get("site")
    if site is not None and getattr(site, "ENABLE_USER_SITE", None):
        yield str(getattr(site, "USER_SITE", "") or _code())


def find_hard_links() -> frozenset[Identity]:
    """Return (device, inode) of those modules of corral that have several hard links. For example,
    uv installs packages as hard links to files in its cache. Such a module has a second path, which
    could be in a granted directory.
    """
    found: set[Identity] = set()
    parent = os.path.dirname(_code())
    waiting = [os.path.join(parent, name) for name in PACKAGES]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    # On Windows call lstat, because entries from `scandir` do not have the number
                    # of hard links there.
                    windows = sys.platform == "win32"
                    seen = os.lstat(entry.path) if windows else entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(seen.st_mode):
                        waiting.append(entry.path)
                    elif seen.st_nlink > 1:
                        found.add((seen.st_dev, seen.st_ino))
        except OSError:
            continue  # an optional package that is not installed
    return frozenset(found)


def refuse_hard_links(grant: Grant, linked: frozenset[Identity]) -> None:
    """Refuse a write grant that contains a hard link to one of corral's modules."""
    if not linked or grant.access != "write":
        return
    if (grant.device, grant.inode) in linked:
        raise Refused(f"{shown(grant.path, 200)} is a hard link to corral's code", REINSTALL)
    inodes = {inode for device, inode in linked if device == grant.device}
    left, waiting = MAX_ENTRIES, [grant.path] if grant.directory and inodes else []
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    left -= 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.inode() in inodes:
                        raise Refused(
                            f"{shown(grant.path, 200)} contains a hard link to corral's code"
                            f" ({shown(entry.path, 200)})",
                            REINSTALL,
                        )
        except OSError as error:
            # Refuse a directory that corral cannot search, because it may contain a hard link to
            # corral's code. The target runs as the same user, so it could open the directory again.
            why = f"{shown(grant.path, 200)} cannot be searched for corral's code: {error.strerror}"
            raise Refused(why, ELSEWHERE) from None
        if left < 0:
            raise Refused(
                f"{shown(grant.path, 200)} has too many files to be searched for hard links"
                " to corral's code",
                REINSTALL,
            )
