"""Trees of files: listed, named by what they are, copied.

The listing is what a plan is made from, and what is copied has to be: a file that has changed in
between fails the copy. Alternate streams are not copied, nor are access lists: what is copied has
the list that its new place gives it.
"""

from __future__ import annotations

import os
import stat

from corral.platforms.windows.files.granted_tree import PREFIX, reaching
from corral.record import record
from corral.units import format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_FILES = 100_000
MOST_BYTES = 4 << 30
REPARSE_POINT = 0x400  # FILE_ATTRIBUTE_REPARSE_POINT
CHUNK = 1 << 20
FORMAT = "corral-store 1"
KEY_DIGITS = 32
HEX = frozenset("0123456789abcdef")


class Unsuitable(Exception):  # noqa: N818 - becomes one line of a PolicyError
    pass


@record
class Listing:
    """Relative names with backslashes: `files` as (name, size, time in ns). A single file has the
    empty name.
    """

    directories: tuple[str, ...]
    files: tuple[tuple[str, int, int], ...]

    def describe(self) -> str:
        size = format_size(sum(size for _, size, _ in self.files))
        return f"{len(self.files)} files, {size}"


def look(source: str, without: Sequence[str] = ()) -> Listing:
    """What a copy would hold; `without` are relative names, left out with all that they hold."""
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
            # Windows tells all of this with the name: no file is opened for it.
            seen = entry.stat(follow_symlinks=False)
            _check_link(seen, entry.path)
            if stat.S_ISDIR(seen.st_mode):
                pending.append(below)
            else:
                files.append((below, seen.st_size, seen.st_mtime_ns))
                total += seen.st_size
        _check_size(len(files) + len(directories), total)
    return Listing(directories=tuple(sorted(directories)), files=tuple(sorted(files)))


def _entries(source: str, name: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(_place(source, name)) as entries:
        for entry in entries:
            yield (f"{name}\\{entry.name}" if name else entry.name), entry


def _place(source: str, name: str) -> str:
    """As Windows takes it however long it is, as paths below `node_modules` are."""
    top = reaching(source)
    return os.path.join(top, *name.split("\\")) if name else top


def _check_link(found: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(found.st_mode) or getattr(found, "st_file_attributes", 0) & REPARSE_POINT:
        raise Unsuitable(f"{path.removeprefix(PREFIX)} is a link")
    if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
        raise Unsuitable(f"{path.removeprefix(PREFIX)} is neither a file nor a directory")


def _check_size(count: int, total: int) -> None:
    if count > MOST_FILES:
        raise Unsuitable(f"it holds more than {MOST_FILES} files")
    if total > MOST_BYTES:
        raise Unsuitable(f"it holds more than {format_size(MOST_BYTES)}")


def key(source: str, listing: Listing, beside: Sequence[str] = ()) -> str:
    """The same for the same files in the same place, beside the same others, and only then."""
    import hashlib
    import json

    words = (FORMAT, source, listing.directories, listing.files, tuple(beside))
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:KEY_DIGITS]


def copy(source: str, target: str, listing: Listing) -> None:
    for name in listing.directories:
        os.mkdir(_place(target, name))
    for name, size, time in listing.files:
        _copy_file(_place(source, name), _place(target, name), size, time)


def _copy_file(source: str, target: str, size: int, time: int) -> None:
    with open(source, "rb") as reading:
        seen = os.fstat(reading.fileno())
        if not stat.S_ISREG(seen.st_mode) or (seen.st_size, seen.st_mtime_ns) != (size, time):
            raise OSError(0, "changed while it was copied", source)
        with open(target, "xb") as writing:
            copied = 0
            while chunk := reading.read(CHUNK):
                copied += writing.write(chunk)
        if copied != size:
            raise OSError(0, "changed while it was copied", source)
    os.utime(target, ns=(time, time))


def kept(directory: str) -> dict[str, list[str]]:
    """The copies by their keys, each with the names of the files that speak of it."""
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
