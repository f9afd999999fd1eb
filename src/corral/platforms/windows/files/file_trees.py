"""List, copy and remove trees of files.

A plan is made from a listing, and exactly that listing is copied. If a file has changed since, the
copy fails. Alternate streams and access lists are not copied. A copy inherits its access list from
its new directory.

`remove` handles everything that a target can create: names that Windows trims or interprets (`x.`,
`nul`), read-only files, directories of any depth. It removes links, but not their targets.
"""

import hashlib
import json
import ntpath
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from corral.paths.links import is_directory
from corral.paths.windows import EXTENDED_PREFIX, extended_path
from corral.record import record
from corral.units import format_size

MAX_FILES = 100_000
MAX_BYTES = 4 << 30
REPARSE_POINT = 0x400  # FILE_ATTRIBUTE_REPARSE_POINT
CHUNK = 1 << 20
FORMAT = "corral-store 1"
COMPILED = "__pycache__"
KEY_DIGITS = 32
HEX = frozenset("0123456789abcdef")
MAX_PATH_LENGTH = 1000
"""A directory with a longer path is moved up first. Windows accepts at most 32767 characters."""


class Unsuitable(Exception):  # noqa: N818 - becomes one line of a PolicyError
    pass


@record
class Listing:
    """The names in a tree; "" for a single file. `files` are (name, size, time in ns).

    `without` are the names that were left out.
    """

    directories: tuple[str, ...]
    files: tuple[tuple[str, int, int], ...]
    without: tuple[str, ...] = ()

    def describe(self) -> str:
        size = format_size(sum(size for _, size, _ in self.files))
        return f"{len(self.files)} files, {size}"


@record
class TreeCopy:
    """A tree `source` and its copy `staged`, in a directory that only the capability `sid` opens.

    `texts` are (relative name, text) of files whose paths were changed to those of the copies.
    """

    source: str
    staged: str
    sid: str
    listing: Listing
    texts: tuple[tuple[str, str], ...] = ()

    @property
    def directory(self) -> str:
        return ntpath.dirname(self.staged)


def list_files(source: str, without: Sequence[str] = ()) -> Listing:
    """List the files of a copy. Relative names in `without` are left out, with their content.

    Raise Unsuitable for links, special files, and too many or too large files.
    """
    left_out = {name.lower() for name in without}
    found = os.lstat(source)
    _check_link(found, source)
    if not stat.S_ISDIR(found.st_mode):
        return Listing(directories=(), files=(("", found.st_size, found.st_mtime_ns),))
    directories: list[str] = []
    files: list[tuple[str, int, int]] = []
    pending, total = [""], 0
    while pending:
        name = pending.pop()
        directories.append(name)
        for below, entry in _entries(source, name):
            if below.lower() in left_out:
                continue
            # Windows returns all of this with the name, so no file is opened.
            seen = entry.stat(follow_symlinks=False)
            _check_link(seen, entry.path)
            if stat.S_ISDIR(seen.st_mode):
                pending.append(below)
            else:
                files.append((below, seen.st_size, seen.st_mtime_ns))
                total += seen.st_size
        if len(files) + len(directories) > MAX_FILES:
            raise Unsuitable(f"it contains more than {MAX_FILES} files")
        if total > MAX_BYTES:
            raise Unsuitable(f"it contains more than {format_size(MAX_BYTES)}")
    return Listing(
        directories=tuple(sorted(directories)),
        files=tuple(sorted(files)),
        without=tuple(sorted(left_out)),
    )


def _entries(source: str, name: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(_path(source, name)) as entries:
        for entry in entries:
            yield (f"{name}\\{entry.name}" if name else entry.name), entry


def _path(source: str, name: str) -> str:
    top = extended_path(source)
    return os.path.join(top, *name.split("\\")) if name else top


def _check_link(found: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(found.st_mode) or getattr(found, "st_file_attributes", 0) & REPARSE_POINT:
        raise Unsuitable(f"{path.removeprefix(EXTENDED_PREFIX)} is a link")
    if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
        raise Unsuitable(f"{path.removeprefix(EXTENDED_PREFIX)} is neither a file nor a directory")


def copy_key(source: str, listing: Listing, beside: Sequence[str] = ()) -> str:
    """Return a key that changes with the files, their path, and the keys of the copies `beside`.

    Compiled modules do not count. Python writes one at each first import, and ignores one that is
    older than its source.
    """
    files = [file for file in listing.files if COMPILED not in file[0]]
    above = [name for name in listing.directories if not name.endswith(COMPILED)]
    words = (FORMAT, source, above, files, tuple(beside))
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:KEY_DIGITS]


def copy(source: str, target: str, listing: Listing) -> None:
    for name in listing.directories:
        os.mkdir(_path(target, name))
    for name, size, time in listing.files:
        _copy_file(_path(source, name), _path(target, name), size, time)


def _copy_file(source: str, target: str, size: int, time: int) -> None:
    with open(source, "rb") as reading:
        seen = os.fstat(reading.fileno())
        if not stat.S_ISREG(seen.st_mode) or (seen.st_size, seen.st_mtime_ns) != (size, time):
            raise OSError(0, "the file changed while it was copied", source)
        with open(target, "xb") as writing:
            copied = 0
            while chunk := reading.read(CHUNK):
                copied += writing.write(chunk)
        if copied != size:
            raise OSError(0, "the file changed while it was copied", source)
    os.utime(target, ns=(time, time))


def find_copies(directory: str) -> dict[str, list[str]]:
    """Return the copies in a store by key, each with the names of the files beside it."""
    found: dict[str, list[str]] = {}
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return found
    for name in names:
        key, dot, _ = name.partition(".")
        if len(key) == KEY_DIGITS and set(key) <= HEX:
            found.setdefault(key, []).extend([name] if dot else [])
    return found


def remove(path: str) -> None:
    """Remove a directory and its content. Leave anything that cannot be removed."""
    top = extended_path(path)
    directories = [top]
    for here in directories:
        for name in _names(here):
            below = os.path.join(here, name)
            if _is_directory(below):
                directories.append(below if len(below) < MAX_PATH_LENGTH else _move_up(below, top))
            else:
                _attempt(os.unlink, below)
    for here in reversed(directories):
        _attempt(os.rmdir, here)


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _is_directory(path: str) -> bool:
    try:
        return is_directory(os.lstat(path))
    except OSError:
        return False


def _move_up(path: str, top: str) -> str:
    fresh = os.path.join(top, os.urandom(8).hex())
    try:
        os.rename(path, fresh)
    except OSError:
        return path
    return fresh


def _attempt(act: Callable[[str], None], path: str) -> None:
    """Call `act`. If it fails, make the path writable and try again."""
    try:
        act(path)
    except OSError:
        with suppress(OSError):
            os.chmod(path, 0o700)
            act(path)
