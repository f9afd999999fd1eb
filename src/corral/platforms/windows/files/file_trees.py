"""List, copy and remove trees of files.

corral copies runtimes and servers, so that targets can read the copy. The plan contains a listing
of the tree, and corral copies exactly the files in this listing. The copy fails if a file has
changed since it was listed. Compiled Python modules are an exception, because Python can write them
at any time. If a compiled module has changed, it is left out of the copy. Alternate streams and
access lists are not copied, so a copy inherits the access list of the directory above it.

A link to a file in the same tree is copied as a file, because installers add `python3.exe` as a
link to `python.exe`. If the linked file is missing or left out, the link is left out too. All other
links are refused.
"""

import hashlib
import json
import ntpath
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from corral.abi.private_directory import directories_above
from corral.paths.followed_links import MAX_LINKS
from corral.paths.links import is_directory, is_name_surrogate
from corral.paths.windows import EXTENDED_PREFIX, extended_path, is_inside
from corral.programs.windows_disk import is_remote
from corral.record import record
from corral.units import format_size

MAX_FILES = 100_000
MAX_BYTES = 4 << 30
CHUNK = 1 << 20
FORMAT = "corral-store 1"
COMPILED = "__pycache__"
KEY_DIGITS = 32
HEX = frozenset("0123456789abcdef")
MAX_PATH_LENGTH = 1000
"""If the path of a directory is at least this long, `remove` moves the directory to the top of its
tree first. Otherwise the paths in it could become longer than Windows allows (32767 characters).
"""


class Unsuitable(Exception):  # noqa: N818 - becomes one line of a PolicyError
    pass


class Changed(OSError):  # noqa: N818 - an OSError with its own cause
    pass


@record
class Listing:
    """The files and directories of a tree, by relative name. If the tree is a single file, its name
    is "".
    """

    directories: tuple[str, ...]
    files: tuple[tuple[str, int, int], ...]  # (name, size, time of the last change in ns)
    without: tuple[str, ...] = ()  # names that the caller wanted to leave out
    # (name of a link, name of the file that it leads to). Both names are also in `files`.
    links: tuple[tuple[str, str], ...] = ()

    def describe(self) -> str:
        size = format_size(sum(size for _, size, _ in self.files))
        return f"{len(self.files)} files, {size}"


@record
class TreeCopy:
    """A tree and its copy. Only targets with the capability `sid` can read the copy.

    `source` is the path of the tree, and `staged` that of the copy. `texts` lists (relative name,
    text) for the files that corral writes itself: files with replaced paths, and the module that
    repairs Python's library (`python_preload.py`).
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
    """List the files to copy. Leave out the relative names in `without`, and everything below them.

    Raise Unsuitable if the tree is too large, has too many files, or contains a special file, a
    link to a directory, or a link to a path outside the tree.
    """
    left_out = {name.lower() for name in without}
    found = os.lstat(source)
    if is_name_surrogate(found):
        raise Unsuitable(f"{source} is a link")
    _check_kind(found, source)
    if not stat.S_ISDIR(found.st_mode):
        return Listing(directories=(), files=(("", found.st_size, found.st_mtime_ns),))
    directories: list[str] = []
    files: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}
    pending, total = [""], 0
    while pending:
        name = pending.pop()
        directories.append(name)
        for below, entry in _entries(source, name):
            if below.lower() in left_out:
                continue
            # This does not open the file. On Windows, the listing of a directory already contains
            # the status of the files in it.
            seen = entry.stat(follow_symlinks=False)
            if is_name_surrogate(seen):
                links[below] = _linked_name(source, entry.path)
                continue
            _check_kind(seen, entry.path)
            if stat.S_ISDIR(seen.st_mode):
                pending.append(below)
            else:
                files[below] = seen.st_size, seen.st_mtime_ns
                total += seen.st_size
        _check_size(len(files) + len(directories) + len(links), total)
    followed = _follow(links, files, frozenset(directories))
    files |= {name: files[target] for name, target in followed.items()}
    _check_size(len(files), sum(size for size, _ in files.values()))
    return Listing(
        directories=tuple(sorted(directories)),
        files=tuple((name, *files[name]) for name in sorted(files)),
        without=tuple(sorted(left_out)),
        links=tuple(sorted(followed.items())),
    )


def _check_size(count: int, total: int) -> None:
    if count > MAX_FILES:
        raise Unsuitable(f"it contains more than {MAX_FILES} files")
    if total > MAX_BYTES:
        raise Unsuitable(f"it contains more than {format_size(MAX_BYTES)}")


def _linked_name(source: str, path: str) -> str:
    """Return the name of the object in this tree that a link points to.

    Raise Unsuitable if the link points to a path outside the tree. Never open a path on another
    machine.
    """
    shown = path.removeprefix(EXTENDED_PREFIX)
    try:
        target = _read_link(path)
    except ValueError as error:  # a link that Windows did not make, such as a WSL link
        raise Unsuitable(f"{shown} is a link of an unknown kind") from error
    above, name = os.path.split(target)
    if not (is_inside(target, source) or is_remote(target) or _leads_to_share(above)):
        # Use the real path, because the link may lead into this tree through another link.
        target = os.path.join(os.path.realpath(above), name)
    if not is_inside(target, source):
        raise Unsuitable(f"{shown} is a link to a path outside this directory")
    return target[len(source) :].replace(os.sep, "\\").strip("\\")


def _read_link(path: str) -> str:
    """Return the path that a link points to, as an absolute path. The path need not exist."""
    text = os.readlink(path)
    text = text.removeprefix(EXTENDED_PREFIX) if text[5:7] == ":\\" else text
    above = os.path.dirname(path.removeprefix(EXTENDED_PREFIX))
    return text if is_remote(text) else os.path.normpath(os.path.join(above, text))


def _leads_to_share(path: str) -> bool:
    """Return whether a path leads to another machine, or contains links that cannot be read.

    Read the links one by one. If Windows followed a link to a share, it would send the user's
    credentials to the server of that share.
    """
    for _ in range(MAX_LINKS):
        if is_remote(path):
            return True
        link = _find_first_link(path)
        if not link:
            return False
        try:
            target = _read_link(link)
        except (OSError, ValueError):
            return True
        path = os.path.join(target, path[len(link) :].lstrip(os.sep))
    return True


def _find_first_link(path: str) -> str:
    """Return the path up to and including its first link, or "" if no existing part is a link."""
    for part in directories_above(path):
        try:
            if is_name_surrogate(os.lstat(part)):
                return part
        except OSError:
            break
    return ""


def _follow(
    links: dict[str, str], files: Mapping[str, object], directories: frozenset[str]
) -> dict[str, str]:
    """Return {name of a link: name of the file that it leads to, also through other links}.

    Leave out a link if its file is missing or not listed. Raise Unsuitable for a link to a
    directory.
    """
    known = {name.lower(): name for name in (*links, *files, *directories)}
    followed = {}
    for name, first in links.items():
        target = known.get(first.lower())
        for _ in range(MAX_LINKS):
            if target not in links:
                break
            target = known.get(links[target].lower())
        if target in directories:
            raise Unsuitable(f"its entry {name} is a link to a directory")
        if target is not None and target in files:
            followed[name] = target
    return followed


def _entries(source: str, name: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(_path(source, name)) as entries:
        for entry in entries:
            yield (f"{name}\\{entry.name}" if name else entry.name), entry


def _path(source: str, name: str) -> str:
    top = extended_path(source)
    return os.path.join(top, *name.split("\\")) if name else top


def _check_kind(found: os.stat_result, path: str) -> None:
    if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
        raise Unsuitable(f"{path.removeprefix(EXTENDED_PREFIX)} is neither a file nor a directory")


def copy_key(source: str, listing: Listing, beside: Sequence[str] = ()) -> str:
    """Return a key for the copy of a tree. A changed tree gets another key, and so a new copy.

    The key depends on the path of the tree, on the list of its files with their sizes and times,
    and on `beside`. `beside` contains the keys of other copies to which the copied files refer, and
    the digests of the files that corral adds. Compiled modules do not change the key: Python can
    write them at any time, and ignores a compiled module that does not match its source.
    """
    files = [file for file in listing.files if COMPILED not in file[0]]
    above = [name for name in listing.directories if not name.endswith(COMPILED)]
    words = (FORMAT, source, above, files, listing.links, tuple(beside))
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:KEY_DIGITS]


def copy(source: str, target: str, listing: Listing) -> None:
    for name in listing.directories:
        os.mkdir(_path(target, name))
    links = dict(listing.links)
    for name, size, time in listing.files:
        # Open the file to which the link pointed when it was listed, because the link may have
        # changed since.
        original = _path(source, links.get(name, name))
        try:
            _copy_file(original, _path(target, name), size, time)
        except (Changed, FileNotFoundError):
            if COMPILED not in name:
                raise
            with suppress(FileNotFoundError):
                os.unlink(_path(target, name))


def _copy_file(source: str, target: str, size: int, time: int) -> None:
    with open(source, "rb") as reading:
        seen = os.fstat(reading.fileno())
        if not stat.S_ISREG(seen.st_mode) or (seen.st_size, seen.st_mtime_ns) != (size, time):
            raise Changed(0, "the file changed after it was listed", source)
        with open(target, "xb") as writing:
            copied = 0
            while chunk := reading.read(CHUNK):
                copied += writing.write(chunk)
        if copied != size:
            raise Changed(0, "the file changed while it was copied", source)
    os.utime(target, ns=(time, time))


def find_copies(directory: str) -> dict[str, list[str]]:
    """Return {key: names} for the copies in a store.

    A copy is a directory whose name is its key. `names` lists the files that belong to the copy.
    They are next to it, and their names begin with the key and a dot. One of them is the mark file,
    which corral writes when the copy is complete.
    """
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
    """Remove a directory and its content. What cannot be removed stays, without an error."""
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
