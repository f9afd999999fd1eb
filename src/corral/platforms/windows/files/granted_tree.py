"""What lies below a granted root: looked at for the plan, then walked by handle.

A walk that sets access lists must not be led out of its tree. Each object is opened without
following links, and judged by that very handle: no reparse point, a single name, and lying where
the root lies. What was swapped in between is refused, however it was done. Nothing is left to
Windows' own propagation, which goes by names.

Costs some tenths of a millisecond an entry; hence the limit on their number.
"""

from __future__ import annotations

import os
import stat

from corral.abi import win32_files
from corral.paths.windows import folded
from corral.policy import secret_files
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from corral.abi.win32 import Handle
    from corral.platforms.windows.files.access_list import Reach


MOST_ENTRIES = 20_000
PREFIX = "\\\\?\\"


@record
class Node:
    """`name` is relative to the root, which itself is ""."""

    name: str
    directory: bool
    reparse: bool = False
    links: int = 1


@record
class Tree:
    """`whole` is false beyond `MOST_ENTRIES`, and then the rest was not looked at."""

    nodes: tuple[Node, ...]
    whole: bool = True


def reaching(path: str) -> str:
    """So that Windows takes names as they are, and paths longer than 260 characters at all."""
    return PREFIX + path if path[1:3] == ":\\" else path


def look(root: str) -> Tree:
    nodes: list[Node] = []
    pending = [""]
    while pending:
        name = pending.pop()
        if len(nodes) >= MOST_ENTRIES:
            return Tree(nodes=tuple(nodes), whole=False)
        path = os.path.join(reaching(root), *name.split("\\")) if name else reaching(root)
        node = _node(name, os.lstat(path))
        nodes.append(node)
        if node.directory and not node.reparse:
            below = os.listdir(path)
            pending += [f"{name}\\{entry}" if name else entry for entry in below]
    return Tree(nodes=tuple(nodes))


def _node(name: str, found: os.stat_result) -> Node:
    directory = stat.S_ISDIR(found.st_mode)
    reparse = stat.S_ISLNK(found.st_mode) or bool(getattr(found, "st_reparse_tag", 0))
    # A directory's count says how many it holds where it says anything.
    return Node(
        name=name,
        directory=directory,
        reparse=reparse,
        links=1 if directory else found.st_nlink,
    )


def problem(node: Node, *, shown: str) -> str:
    """Why this cannot be granted; empty if it can."""
    if node.reparse:
        return f"{shown} is a link or a mount point, and leads elsewhere"
    if node.links > 1:
        return f"{shown} has {node.links} names, and one may lie outside"
    return ""


def opened(path: str) -> Handle:
    """Of one's own file: with the right to change its access list."""
    try:
        return win32_files.open_itself(path)
    except OSError as error:
        raise named(error, path) from error


def walk(root: str) -> Generator[tuple[str, Handle, bool], None, None]:
    """(path, handle, is a directory) of all that lies in a root, parents first.

    Every handle is closed when the next one is asked for. A directory is listed only after its
    caller has seen it: what is made in it later inherits from it.
    """
    with opened(reaching(root)) as top:
        base = _place(top.value)
        pending = [reaching(root)]
        while pending:
            path = pending.pop()
            with opened(path) as handle:
                node = _judged(path, handle.value, base)
                yield path.removeprefix(PREFIX), handle, node.directory
            if node.directory:
                pending += [os.path.join(path, name) for name in os.listdir(path)]


def is_identity(handle: int, volume: int, file: int) -> bool:
    """Whether this is the object that Python's stat once saw, before or since version 3.12."""
    if win32_files.information(handle)[2] == (volume, file):
        return True
    try:
        return win32_files.wide_identity(handle) == (volume, file)
    except OSError:
        return False  # no file system of this host has wide ids


def is_directory(handle: int) -> bool:
    """A directory proper: what a reparse point shows lies elsewhere."""
    attributes = win32_files.information(handle)[0]
    mask = win32_files.FILE_ATTRIBUTE_DIRECTORY | win32_files.FILE_ATTRIBUTE_REPARSE_POINT
    return attributes & mask == win32_files.FILE_ATTRIBUTE_DIRECTORY


def _judged(path: str, handle: int, base: str) -> Node:
    attributes, links, _ = win32_files.information(handle)
    directory = bool(attributes & win32_files.FILE_ATTRIBUTE_DIRECTORY)
    reparse = bool(attributes & win32_files.FILE_ATTRIBUTE_REPARSE_POINT)
    node = Node(name=path, directory=directory, reparse=reparse, links=1 if directory else links)
    shown = path.removeprefix(PREFIX)
    text = problem(node, shown=shown)
    place = _place(handle)
    if not text and place != base and not place.startswith(base + "\\"):
        text = f"{shown} was moved while it was looked at"
    if text:
        raise OSError(0, text, shown)
    return node


def _place(handle: int) -> str:
    return folded(win32_files.final_path(handle))


def named(error: OSError, path: str) -> OSError:
    """The same failure, with the path that it was about."""
    code = getattr(error, "winerror", None)
    return OSError(error.errno, error.strerror, path.removeprefix(PREFIX), code)


HIDDEN = frozenset(secret_files.hidden_anywhere("windows"))
"""At any depth, in any grant."""
HIDDEN_AT_HOME = secret_files.hidden("windows")
STARTING = frozenset(secret_files.PROJECT)
STARTING_AT_HOME = secret_files.protected("windows")
REPOSITORY = tuple(f".git\\{name}" for name in secret_files.GIT)
DEEPEST = 2


def find(names: Iterable[str], access: Reach, place: str = "") -> tuple[str, ...]:
    """Of the relative names of a tree, the outermost that must not be granted together with it.

    `place` is where the tree lies in the user's profile; empty if elsewhere.
    """
    known = _relative(HIDDEN_AT_HOME, place)
    known |= _relative(STARTING_AT_HOME, place) if access == "write" else frozenset()
    found: list[str] = []
    for name in sorted(names, key=lambda name: (name.count("\\"), name)):
        secret = name.lower() in known or _is_secret(name, access)
        if secret and not any(name.startswith(f"{one}\\") for one in found):
            found.append(name)
    return tuple(found)


def absent(names: Iterable[str], place: str = "") -> tuple[str, ...]:
    """What would start by itself in a tree that may be written, and does not exist yet."""
    there = {name.lower() for name in names}
    wanted = (*sorted(STARTING), *REPOSITORY, *sorted(_relative(STARTING_AT_HOME, place)))
    return tuple(name for name in wanted if name not in there)


def _relative(at_home: Iterable[str], place: str) -> frozenset[str]:
    """Names below a profile as names below a directory in it, in lower case."""
    if not place:
        return frozenset()
    below = f"{place}\\".lower()
    paths = [name.replace("/", "\\").lower() for name in at_home]
    return frozenset(path.removeprefix(below) for path in paths if path.startswith(below))


def _is_secret(name: str, access: Reach) -> bool:
    lower = name.lower()
    last = lower.rpartition("\\")[2]
    depth = lower.count("\\")
    if last in HIDDEN or (depth < DEEPEST and secret_files.is_environment_file(last)):
        return True
    if access != "write" or depth > DEEPEST + 1:
        return False
    return last in STARTING or "\\".join(lower.split("\\")[-2:]) in REPOSITORY
