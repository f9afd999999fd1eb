"""Turn the paths of a policy into grants, and refuse paths that are never granted.

A grant is for the file that the path resolves to now: its real path, device and inode. Protected
paths are compared by name and by inode, because bind mounts and case-insensitive volumes give one
directory many names.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.paths.mounts import on_disk
from corral.paths.native import is_inside
from corral.policy.model import Grant
from corral.record import replace
from corral.safe_text import shell_word, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.paths.mounts import Mounts
    from corral.policy.model import Access

    Identity = tuple[int, int]

SYSTEM_PATHS = ("/proc", "/sys", "/dev", "/run", "/private/var/run")
# Services have their sockets in these directories. A single socket there may be granted, because
# this gives access to only one service.
SOCKET_DIRECTORIES = ("/run", "/private/var/run")
MAX_ENDING = 8  # the maximum length of a file's ending, such as that of sqlite3 and markdown


class Refused(Exception):  # noqa: N818 - becomes one line of a PolicyError
    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


OTHER_USER = "start corral as the user who may open it"
"""The hint for a path that this user is not allowed to open. FUSE and NFS can deny access even to
root.
"""


def make_absolute(text: str, base: str, home: str) -> str:
    """Return `text` as an absolute path, with `~`, `.`, `..` and double slashes resolved. `a/../b`
    always becomes `b`, even if `a` is a symlink.
    """
    if text.startswith("~"):
        if text[1:2] not in {"", "/", os.sep}:
            raise Refused(
                f"{shown(text)}: ~ is expanded only for your own home", "write the path in full"
            )
        text = home + text[1:]
    path = os.path.normpath(os.path.join(base, text))
    if os.name == "nt" and path.startswith("\\\\"):
        raise Refused(f"{shown(text)}: network and device paths cannot be granted")
    # normpath keeps two leading slashes, which have a special meaning on some POSIX systems. On
    # Linux they mean the same as one.
    return "/" + path.lstrip("/") if path.startswith("//") else path


def resolve(written: str, *, is_socket: bool = False) -> str:
    try:
        path = os.path.realpath(written, strict=True)
    except FileNotFoundError:
        make = "Is the program that makes it running?" if is_socket else _name_commands(written)
        hint = f"is it spelled right? {make}"
        raise Refused(f"{shown(written, 200)} does not exist", hint) from None
    except OSError as error:
        hint = OTHER_USER if isinstance(error, PermissionError) else "is it spelled right?"
        raise Refused(f"{shown(written, 200)} cannot be reached: {error.strerror}", hint) from None
    path = "/" + path.lstrip("/") if path.startswith("//") else path
    if sys.platform == "linux":
        _refuse_other_spelling(path)
    return path


def _name_commands(path: str) -> str:
    """Return a hint with the commands that make a missing path. A path such as `out.txt` is
    probably a file; any other path may be a file or a directory.
    """
    word = shell_word(path)
    make_directory = f"mkdir -p {word}"
    if os.name == "nt":  # Windows has no `touch`
        return f"To make a directory: {make_directory}"
    parent = os.path.dirname(path)
    first = "" if os.path.isdir(parent) else f"mkdir -p {shell_word(parent)} && "
    make_file = f"{first}touch {word}"
    if _has_file_ending(path):
        return f"To make it: {make_file}"
    return f"To make it: {make_file} (a file) or {make_directory} (a directory)"


def _has_file_ending(path: str) -> bool:
    """Return whether a path looks like a file because of its ending. Directories such as `conf.d`
    and `python3.12` do not.
    """
    ending = os.path.splitext(path)[1][1:]
    return ending[:1].isalpha() and ending.isalnum() and 1 < len(ending) <= MAX_ENDING


def _refuse_other_spelling(path: str) -> None:
    """Refuse a path that is spelled differently from the names on the disk.

    A case-insensitive file system accepts such a path. But corral would bind the file at this path
    in the sandbox, where case matters, so the target would not find it under its true name.
    """
    from corral.paths.spelling import true_spelling

    true = true_spelling(path)
    if not true:
        raise Refused(
            f"the spelling of {shown(path, 200)} cannot be checked, because its directory cannot"
            " be listed"
        )
    if true != path:
        from shlex import quote

        raise Refused(
            f"{shown(path, 200)} is spelled differently in its directory, which ignores case",
            f"write {quote(true)}",
        )


def file_identity(path: str) -> Identity | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def identities_above(path: str) -> frozenset[Identity]:
    """Return (device, inode) of a path and of every directory above it except the root."""
    found: set[Identity] = set()
    while (parent := os.path.dirname(path)) != path:
        if (one := file_identity(path)) is not None:
            found.add(one)
        path = parent
    return frozenset(found)


def contains(outer: str, inner: str, mounts: Mounts) -> bool:
    """Return whether `outer` contains `inner` or is the same path.

    Compare names, inodes, and paths on the disk. Names are not enough, because a directory that is
    mounted twice has two unrelated paths.
    """
    if is_inside(inner, outer) or file_identity(outer) in identities_above(inner):
        return True
    one, other = on_disk(outer, mounts), on_disk(inner, mounts)
    return one[0] == other[0] != "" and is_inside(other[1], one[1])


def make_grant(access: Access, written: str) -> Grant:
    """Return a grant for the file that the path resolves to now. Raise Refused if corral never
    grants such a path.
    """
    path = resolve(written, is_socket=access == "socket")
    found = os.lstat(path)
    if access == "socket":
        if not stat.S_ISSOCK(found.st_mode):
            raise Refused(
                f"{shown(path, 200)} is not a socket",
                "files and directories belong in filesystem.read or filesystem.write",
            )
    elif not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
        raise Refused(
            f"{shown(path, 200)} is neither a file nor a directory",
            "a socket belongs in filesystem.unix_sockets"
            if stat.S_ISSOCK(found.st_mode)
            else "grant a file or a directory",
        )
    check_system_path(path, access, found)
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


def check_system_path(path: str, access: Access, found: os.stat_result) -> None:
    if os.path.dirname(path) == path:
        raise Refused(f"{shown(path)} is the whole file system", "grant smaller directories")
    if os.name == "nt":
        return  # the backend for Windows refuses system paths
    for system in SYSTEM_PATHS:
        if access == "socket" and system in SOCKET_DIRECTORIES:
            continue
        # A file system such as /proc may also be mounted at another path. So if `system` is a mount
        # point, refuse every path on its device. It is a mount point if its device differs from
        # that of its parent directory. A comparison with the device of / would be wrong on macOS,
        # which keeps / on one volume, and /private/var and the users' files together on another.
        here, above = file_identity(system), file_identity(os.path.dirname(system))
        mounted = here is not None and above is not None and here[0] != above[0]
        if is_inside(path, system) or (mounted and here is not None and found.st_dev == here[0]):
            raise Refused(
                f"{shown(path, 200)} belongs to the system ({system})", "grant your own files"
            )


def check_links(grants: Iterable[Grant]) -> None:
    """Refuse a grant if its path, as written, is inside a write grant and leads out of it through a
    symlink. A target could have made this symlink in an earlier run.
    """
    grants = tuple(grants)
    writable = [grant for grant in grants if grant.access == "write" and grant.directory]
    for grant in grants:
        for outer in writable:
            in_outer = is_inside(grant.written, outer.path) or is_inside(
                grant.written, outer.written
            )
            linked = in_outer and grant.written not in {grant.path, outer.written}
            if linked and not is_inside(grant.path, outer.path):
                raise Refused(
                    f"{shown(grant.written, 200)} is a symlink out of {shown(outer.path, 200)},"
                    " which the server can write to"
                )


def merge_grants(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    """Return the grants without duplicates, parents first. A path with both a read and a write
    grant is writable.
    """
    grants = tuple(grants)
    written = {grant.path for grant in grants if grant.access == "write"}
    found = {
        (grant.path, grant.written): replace(grant, access="write")
        if grant.path in written
        else grant
        for grant in grants
    }
    return tuple(found[key] for key in sorted(found))
