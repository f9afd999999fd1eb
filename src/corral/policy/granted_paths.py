"""Remember where each granted path led when it was first granted.

A server that may write a directory can replace a part of it by a link. Without this memory, a later
run of another server with a grant of that part would be granted what the link leads to.
"""

from __future__ import annotations

import os
import stat

from corral.directories import directories, is_private, refuse_shared
from corral.errors import ChangedPathsError, PolicyError
from corral.safe_text import printable, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.policy.model import Grant

FILE = "granted-paths"
MAX_BYTES = 1 << 20
COMPACT_BYTES = 1 << 18
SEPARATOR = "\0"
"""The file has a path as written, then where it led, and so on; the last entry of a path counts."""


def memory_file(home: str) -> str:
    return os.path.join(directories(home=home).state, FILE)


def read_memory(file: str) -> dict[str, str]:
    """Return {path as written: where it led}; refuse a file that is not the user's own."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(file, flags)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise _broken(file, error.strerror) from error
    with open(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or not is_private(found, 0o077):
            raise _broken(file, "not a file that only you can use")
        parts = os.fsdecode(stream.read(MAX_BYTES + 1)).split(SEPARATOR)
    if len(parts) % 2 != 1 or parts[-1] or found.st_size > MAX_BYTES:
        raise _broken(file, "not complete, or too large")
    return dict(zip(parts[:-1:2], parts[1::2], strict=True))


def remember(file: str, paths: Mapping[str, str]) -> None:
    """Add entries, and drop those of paths that are gone once the file is large."""
    directory = os.path.dirname(file)
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        refuse_shared(directory, os.lstat(directory))
        if _append(file, paths) > COMPACT_BYTES:
            kept = {one: other for one, other in read_memory(file).items() if os.path.lexists(one)}
            fresh = f"{file}.{os.urandom(8).hex()}"
            _append(fresh, kept)
            os.replace(fresh, file)
    except OSError as error:
        raise PolicyError(
            f"{printable(file)} cannot be written: {error.strerror}",
            hint="corral keeps there where granted paths lead: see whose it is, and whether the"
            " disk is full",
        ) from error


def _append(file: str, paths: Mapping[str, str]) -> int:
    """Add entries by one write, which keeps runs that start together apart; return the size."""
    text = "".join(f"{one}{SEPARATOR}{other}{SEPARATOR}" for one, other in paths.items())
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(file, flags, 0o600)
    try:
        os.write(descriptor, os.fsencode(text))
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def check_granted_paths(grants: Sequence[Grant], home: str) -> None:
    """Refuse grants that lead elsewhere than before; remember those that are new."""
    linked = [grant for grant in grants if grant.written != grant.path]
    file = memory_file(home)
    try:
        known = read_memory(file)
        changed = {
            grant.written: (known[grant.written], grant.path)
            for grant in linked
            if known.get(grant.written, grant.path) != grant.path
        }
        if changed:
            raise _changed(changed)
        new = [one for one in grants if one.written not in known and not _is_temporary(one)]
        if new:
            remember(file, {grant.written: grant.path for grant in new})
    except ChangedPathsError:
        raise
    except PolicyError as error:
        # A path without links leads where it says, whatever the memory has.
        if linked:
            error.hint = f"{error.hint}; or grant where it leads: {printable(linked[0].path)}"
            raise


def _changed(paths: dict[str, tuple[str, str]]) -> ChangedPathsError:
    from shlex import quote

    lines = [describe_change(path, *leads) for path, leads in paths.items()]
    commands = [f"corral approve --path {quote(path)}" for path in paths]
    return ChangedPathsError(
        paths, "\n".join(lines), hint="if you meant that: " + " && ".join(commands)
    )


def describe_change(written: str, before: str, now: str) -> str:
    return (
        f"{shown(written, 200)} leads to {shown(now, 200)} now; when it was first granted it led"
        f" to {shown(before, 200)}"
    )


def _is_temporary(grant: Grant) -> bool:
    """Return whether a path is directly in a directory such as /tmp, where names are used once."""
    if grant.written != grant.path:
        return False
    return bool(os.stat(os.path.dirname(grant.path)).st_mode & stat.S_ISVTX)


def _broken(file: str, why: str | None) -> PolicyError:
    return PolicyError(
        f"{printable(file)} cannot be used: {why}",
        hint=f"look at it, and remove it: rm {printable(file)}",
    )
