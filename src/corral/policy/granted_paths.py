"""Record the real path that each granted path resolved to when it was first granted.

A server with a write grant for a directory can replace a file in it with a symlink. If another
server has a grant for this file, its next run would get access to the symlink's destination. So
corral refuses a grant that no longer resolves to the recorded path.
"""

from __future__ import annotations

import errno
import os
import stat

from corral.abi.private_directory import OPEN_FLAGS, lock, make_private_directory
from corral.directories import directories, is_private, refuse_shared
from corral.errors import ChangedPathsError, PolicyError
from corral.paths.followed_links import follow
from corral.safe_text import printable, shell_word, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.policy.model import Grant

FILE = "granted-paths"
MAX_BYTES = 1 << 20
COMPACT_BYTES = 1 << 18
SEPARATOR = "\0"
"""The character that ends each path in the file. An entry contains two paths: a path as written,
and its real path at that time. If a written path has several entries, the last one counts.
"""


def memory_file(home: str) -> str:
    return os.path.join(directories(home=home).state, FILE)


def read_memory(file: str) -> dict[str, str]:
    """Return {path as written: recorded real path}. Refuse a file that other users can open.

    Ignore damage at the end of the file, because a crash or a full disk can cause it.
    """
    whole, damaged, _ = _read(file).partition(SEPARATOR * 2)
    parts = (whole + SEPARATOR if damaged else whole).split(SEPARATOR)[:-1]
    return dict(zip(parts[::2], parts[1::2], strict=False))


def _read(file: str) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | OPEN_FLAGS | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise _broken(file, error.strerror) from error
    with open(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or not is_private(found, 0o077):
            raise _broken(file, "it is not a regular file, or other users have access to it")
        if found.st_size > MAX_BYTES:
            raise _broken(file, "it is too large")
        return os.fsdecode(stream.read(MAX_BYTES))


def remember(file: str, paths: Mapping[str, str]) -> None:
    """Add entries to the file. If the end of the file is damaged or the file has become large,
    rewrite it without the entries of paths that no longer exist.
    """
    directory = os.path.dirname(file)
    try:
        make_private_directory(directory)
        refuse_shared(directory, os.lstat(directory))
        text, entries = _read(file), _format(paths)
        is_large = len(text) + len(entries) > COMPACT_BYTES
        if not is_large and (not text or _is_whole(text)):
            _append(file, entries)
            return
        from corral.abi.whole_file import replace_file

        known = {one: other for one, other in read_memory(file).items() if os.path.lexists(one)}
        replace_file(file, _format(known) + entries)
    except OSError as error:
        from corral.disk_hints import disk_hint

        why = "check who owns it: corral records the real paths of grants there"
        raise PolicyError(
            f"{printable(file)} cannot be written: {error.strerror}",
            hint=disk_hint(error, file, why),
        ) from error


def _is_whole(text: str) -> bool:
    ends_well = text.endswith(SEPARATOR) and text.count(SEPARATOR) % 2 == 0
    return ends_well and SEPARATOR * 2 not in text


def _format(paths: Mapping[str, str]) -> bytes:
    return os.fsencode("".join(f"{one}{SEPARATOR}{two}{SEPARATOR}" for one, two in paths.items()))


def _append(file: str, entries: bytes) -> None:
    """Add entries with a single write, so that concurrent runs do not mix their entries.

    If the disk is full, truncate the file to its old size. The lock keeps other runs from adding
    entries in the meantime.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | OPEN_FLAGS, 0o600)
    try:
        lock(descriptor, wait=True)
        size = os.fstat(descriptor).st_size
        if os.write(descriptor, entries) < len(entries):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)
    finally:
        os.close(descriptor)


def check_granted_paths(grants: Sequence[Grant], home: str) -> str:
    """Refuse grants that resolve to different files than before, and record the real paths of new
    grants. Return "" or a warning.

    If the record cannot be read or written, for instance because the disk is full, refuse all
    grants through symlinks. If there are no such grants, only return a warning.
    """
    linked = [grant for grant in grants if grant.written != grant.path]
    file = memory_file(home)
    try:
        known = read_memory(file)
        changed = {
            grant.written: (known.get(grant.written, grant.written), grant.path)
            for grant in linked
            if known.get(grant.written, _first_lead(grant)) != grant.path
        }
        if changed:
            raise _changed(changed)
        new = [one for one in grants if one.written not in known and not _is_temporary(one)]
        if new:
            remember(file, {grant.written: grant.path for grant in new})
    except ChangedPathsError:
        raise
    except PolicyError as error:
        # A path without symlinks cannot lead to a different file, so a warning is enough for it.
        if linked:
            error.hint = f"{error.hint}; or grant its destination: {printable(linked[0].path)}"
            raise
        return f"the real paths of grants are not recorded: {error.message}"
    return ""


def _changed(paths: dict[str, tuple[str, str]]) -> ChangedPathsError:
    from shlex import quote

    lines = [describe_change(path, *leads) for path, leads in paths.items()]
    commands = [f"corral approve --path {quote(path)}" for path in paths]
    return ChangedPathsError(
        paths, "\n".join(lines), hint="if this is what you want: " + " && ".join(commands)
    )


def describe_change(written: str, before: str, now: str) -> str:
    if written == before:
        return f"{shown(written, 200)} is now a link to {shown(now, 200)}"
    return (
        f"{shown(written, 200)} now leads to {shown(now, 200)}; when it was first granted it led"
        f" to {shown(before, 200)}"
    )


def _first_lead(grant: Grant) -> str:
    """Return the real path that a grant must have if its path was never recorded.

    Usually this is the real path that it has now, so the grant is accepted.

    A path directly in a directory such as /tmp is not recorded. If it is a symlink now, a target
    may have made this symlink after an earlier grant of the path. So if a grant leads through such
    a symlink, return its path as written. The grant is then refused.
    """
    links, _ = follow(grant.written)
    return grant.written if any(_is_sticky(os.path.dirname(one)) for one in links) else grant.path


def _is_sticky(directory: str) -> bool:
    return bool(os.stat(directory).st_mode & stat.S_ISVTX)


def _is_temporary(grant: Grant) -> bool:
    """Return whether a path is directly in a directory such as /tmp. Such paths are not recorded,
    because their names are often used only once.
    """
    return grant.written == grant.path and _is_sticky(os.path.dirname(grant.path))


def _broken(file: str, why: str | None) -> PolicyError:
    return PolicyError(
        f"{printable(file)} cannot be used: {why}",
        hint=f"check it, then remove it: rm {shell_word(file)}",
    )
