"""Written paths -> Grants, and the paths that are never granted.

A grant is for what the path leads to now: its real path, device and inode. Comparisons with
protected places go by name and by inode, since bind mounts and case-insensitive volumes give one
directory many names.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.paths.native import is_inside
from corral.policy.model import Grant
from corral.record import record
from corral.safe_text import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corral.policy.model import Access

    Identity = tuple[int, int]
    Mounts = Mapping[str, tuple[str, str]]

KERNEL = ("/proc", "/sys", "/dev", "/run", "/private/var/run")
# Sockets of services live here, and granting one names exactly one service.
SOCKET_PLACES = ("/run", "/private/var/run")


@record
class Protected:
    """A place of corral's own. `reads`: not even a read grant may lie in it."""

    path: str
    what: str
    reads: bool = False


class Refused(Exception):  # noqa: N818 - becomes one line of a PolicyError
    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


def absolute(text: str, base: str, home: str) -> str:
    """As written, but absolute and without `.`, `..` and doubled slashes. `..` goes by the text."""
    if text.startswith("~"):
        if text[1:2] not in {"", "/", os.sep}:
            raise Refused(f"{shown(text)}: only your own ~ is expanded", "write the path in full")
        text = home + text[1:]
    path = os.path.normpath(os.path.join(base, text))
    if os.name == "nt" and path.startswith("\\\\"):
        raise Refused(f"{shown(text)}: network and device paths cannot be granted")
    # POSIX lets two leading slashes mean something else, and normpath keeps them; Linux does not.
    return "/" + path.lstrip("/") if path.startswith("//") else path


def real(written: str) -> str:
    try:
        path = os.path.realpath(written, strict=True)
    except FileNotFoundError:
        raise Refused(f"{shown(written, 200)} does not exist", "create it first") from None
    except OSError as error:
        raise Refused(f"{shown(written, 200)} cannot be reached: {error.strerror}") from None
    return "/" + path.lstrip("/") if path.startswith("//") else path


def identity(path: str) -> Identity | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def lineage(path: str) -> frozenset[Identity]:
    """The identities of a path and of every directory above it, the root left out."""
    found: set[Identity] = set()
    while (parent := os.path.dirname(path)) != path:
        if (one := identity(path)) is not None:
            found.add(one)
        path = parent
    return frozenset(found)


def contains(outer: str, inner: str, table: Mounts) -> bool:
    """By name, by inode, and by place on the disk: what is mounted a second time has other
    directories above it.
    """
    if is_inside(inner, outer) or identity(outer) in lineage(inner):
        return True
    one, other = on_disk(outer, table), on_disk(inner, table)
    return one[0] == other[0] != "" and is_inside(other[1], one[1])


def mounts() -> Mounts:
    """By where it is mounted: the device, and the directory of its file system. A later mount
    covers an earlier one.
    """
    if sys.platform != "linux":
        return {}
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.split(" ", 5) for line in file]
    except OSError:
        return {}
    return {unescaped(row[4]): (row[2], unescaped(row[3])) for row in rows}


def unescaped(text: str) -> str:
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, letter)
    return text


def on_disk(path: str, table: Mounts) -> tuple[str, str]:
    """The device and the path on it; empty where no mount is known."""
    point = path
    while point not in table and (parent := os.path.dirname(point)) != point:
        point = parent
    device, root = table.get(point, ("", ""))
    return device, f"{root.rstrip('/')}/{path[len(point) :].lstrip('/')}".rstrip("/")


def make(access: Access, written: str) -> Grant:
    """Look at a path once and keep what was seen; raise Refused if it can never be granted."""
    path = real(written)
    found = os.lstat(path)
    check_kind(path, access, found)
    check_place(path, access, found)
    return Grant(
        path=path,
        access=access,
        device=found.st_dev,
        inode=found.st_ino,
        directory=stat.S_ISDIR(found.st_mode),
        owner=found.st_uid,
        group=found.st_gid,
        written=written,
    )


def check_kind(path: str, access: Access, found: os.stat_result) -> None:
    if access == "socket":
        if not stat.S_ISSOCK(found.st_mode):
            raise Refused(f"{shown(path, 200)} is not a socket")
    elif not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
        raise Refused(
            f"{shown(path, 200)} is neither a file nor a directory",
            "a socket belongs in filesystem.unix_sockets" if stat.S_ISSOCK(found.st_mode) else "",
        )


def check_place(path: str, access: Access, found: os.stat_result) -> None:
    if os.path.dirname(path) == path:
        raise Refused(f"{shown(path)} is everything there is", "grant the directories it needs")
    if os.name == "nt":
        return  # what belongs to that system its own backend refuses
    for place in KERNEL:
        if access == "socket" and place in SOCKET_PLACES:
            continue
        # The same file system mounted elsewhere is the same thing under another name. Looked at
        # from right above: on macOS users' files are on another volume than the root is.
        here, above = identity(place), identity(os.path.dirname(place))
        mounted = here is not None and above is not None and here[0] != above[0]
        if is_inside(path, place) or (mounted and here is not None and found.st_dev == here[0]):
            raise Refused(
                f"{shown(path, 200)} belongs to the system ({place})", "grant files of your own"
            )


def check_own(grant: Grant, protected: Iterable[Protected], home: str, table: Mounts) -> None:
    """Refuse what would let the target rewrite corral, its policy or its records."""
    if grant.access == "write" and contains(grant.path, home, table):
        raise Refused(
            f"{shown(grant.path, 200)} is your home directory or holds it",
            "grant the directories in it that the server needs",
        )
    for item in protected:
        place = os.path.realpath(item.path)
        if os.path.dirname(place) == place:
            continue
        within = contains(place, grant.path, table)
        if within and (item.reads or grant.access == "write"):
            raise Refused(f"{shown(grant.path, 200)} belongs to {item.what}")
        if grant.access == "write" and contains(grant.path, place, table):
            raise Refused(f"{shown(grant.path, 200)} holds {item.what} ({shown(place, 200)})")


def own_places(home: str) -> tuple[Protected, ...]:
    """Directories, code and interpreter of corral itself."""
    from corral.directories import directories

    kept = directories(home=home)
    code = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    return (
        Protected(path=kept.config, what="corral's configuration", reads=True),
        Protected(path=kept.state, what="corral's state", reads=True),
        Protected(path=kept.cache, what="corral's cache", reads=True),
        Protected(path=code, what="corral's code"),
        *(Protected(path=path, what="corral's interpreter") for path in sorted(prefixes)),
        *([Protected(path=sys.executable, what="corral's interpreter")] if sys.executable else []),
    )


def check_links(grants: Iterable[Grant]) -> None:
    """A link that an earlier run could have planted in a writable grant must not lead out of it."""
    grants = tuple(grants)
    for grant in grants:
        for open_one in grants:
            planted = (
                open_one.access == "write"
                and open_one.directory
                and grant.written not in {grant.path, open_one.written}
                and (
                    is_inside(grant.written, open_one.path)
                    or is_inside(grant.written, open_one.written)
                )
            )
            if planted and not is_inside(grant.path, open_one.path):
                raise Refused(
                    f"{shown(grant.written, 200)} is a link out of {shown(open_one.path, 200)},"
                    " which the server can write"
                )


def collapse(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    """One grant for each path and spelling, parents first; read and write together are write."""
    from corral.record import replace

    grants = tuple(grants)
    written = {grant.path for grant in grants if grant.access == "write"}
    found = {
        (grant.path, grant.written): replace(grant, access="write")
        if grant.path in written
        else grant
        for grant in grants
    }
    return tuple(found[key] for key in sorted(found))
