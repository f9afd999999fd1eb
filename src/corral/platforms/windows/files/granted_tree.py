"""The objects below a granted root: listed for the plan, then walked by handle.

A walk that sets access lists must not be led out of its tree. Each object is opened without
following links, and checked by that very handle: no reparse point, a single name, and a path below
the root. An object that was swapped in between is refused, however it was done. Nothing is left to
Windows' own propagation, which goes by names.

Costs some tenths of a millisecond an entry; hence the limit on their number.
"""

import os
import stat
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager

from corral.abi import win32_files, win32_security
from corral.abi.win32 import Handle
from corral.paths.windows import EXTENDED_PREFIX, extended_path, fold_path
from corral.platforms.windows.files import access_list
from corral.platforms.windows.files.access_list import Reach
from corral.policy import secret_files
from corral.record import record

MAX_ENTRIES = 20_000


@record
class Node:
    """`name` is relative to the root, which itself is ""."""

    name: str
    directory: bool
    reparse: bool = False
    links: int = 1


@record
class Tree:
    """`whole` is false beyond `MAX_ENTRIES`; the rest is not listed then."""

    nodes: tuple[Node, ...]
    whole: bool = True


def read_tree(root: str) -> Tree:
    nodes: list[Node] = []
    pending = [""]
    while pending:
        name = pending.pop()
        if len(nodes) >= MAX_ENTRIES:
            return Tree(nodes=tuple(nodes), whole=False)
        path = os.path.join(extended_path(root), *name.split("\\")) if name else extended_path(root)
        node = _node(name, os.lstat(path))
        nodes.append(node)
        if node.directory and not node.reparse:
            below = os.listdir(path)
            pending += [f"{name}\\{entry}" if name else entry for entry in below]
    return Tree(nodes=tuple(nodes))


def _node(name: str, found: os.stat_result) -> Node:
    directory = stat.S_ISDIR(found.st_mode)
    reparse = stat.S_ISLNK(found.st_mode) or bool(getattr(found, "st_reparse_tag", 0))
    # Where a directory has a count, it is that of its entries.
    links = 1 if directory else found.st_nlink
    return Node(name=name, directory=directory, reparse=reparse, links=links)


def problem(node: Node, *, shown: str) -> str:
    """Return why this object cannot be granted; empty if it can."""
    if node.reparse:
        return f"{shown} is a link or a mount point, and leads elsewhere"
    if node.links > 1:
        return f"{shown} has {node.links} names, and one may lie outside"
    return ""


def open_object(path: str) -> Handle:
    """Open a file or directory with the right to change its access list."""
    try:
        return win32_files.open_itself(extended_path(path))
    except OSError as error:
        raise with_path(error, path) from error


def mutex(sid: str) -> AbstractContextManager[None]:
    """Return the mutex of every process that changes the entries of this SID, or decides so."""
    return win32_files.own_mutex(f"Local\\corral-{sid}")


def set_entries(path: str, handle: int, sid: str, entries: tuple[bytes, ...]) -> bool:
    """Set the entries of this SID in one access list; return whether there was a change."""
    try:
        changed = access_list.grant(win32_security.read_security(handle), sid, entries)
        if changed is not None:
            win32_security.write_security(handle, changed)
    except access_list.Unusable as error:
        raise OSError(0, str(error), path) from error
    except OSError as error:
        raise with_path(error, path) from error
    return changed is not None


def check_entry(path: str, sid: str, problem: str) -> None:
    with open_object(path) as handle:
        if not access_list.has_entry(win32_security.read_security(handle.value), sid):
            raise OSError(0, problem, path)


def walk(root: str) -> Generator[tuple[str, Handle, bool], None, None]:
    """Yield (path, handle, is a directory) of everything in a root, parents first.

    Every handle is closed when the next one is asked for. A directory is listed only after the
    caller has set its access list: what is made in it later inherits that.
    """
    with open_object(root) as top:
        base = _final_path(top.value)
        pending = [extended_path(root)]
        while pending:
            path = pending.pop()
            with open_object(path) as handle:
                node = _check(path, handle.value, base)
                yield path.removeprefix(EXTENDED_PREFIX), handle, node.directory
            if node.directory:
                pending += [os.path.join(path, name) for name in os.listdir(path)]


def has_identity(handle: int, volume: int, file: int) -> bool:
    """Return whether this is the object that Python's stat saw, before or since version 3.12."""
    if win32_files.information(handle)[2] == (volume, file):
        return True
    try:
        return win32_files.wide_identity(handle) == (volume, file)
    except OSError:
        return False  # no file system of this host has wide ids


def is_directory(handle: int) -> bool:
    """Return whether this is a directory, and not a reparse point, whose content is elsewhere."""
    attributes = win32_files.information(handle)[0]
    mask = win32_files.FILE_ATTRIBUTE_DIRECTORY | win32_files.FILE_ATTRIBUTE_REPARSE_POINT
    return attributes & mask == win32_files.FILE_ATTRIBUTE_DIRECTORY


def _check(path: str, handle: int, base: str) -> Node:
    attributes, links, _ = win32_files.information(handle)
    directory = bool(attributes & win32_files.FILE_ATTRIBUTE_DIRECTORY)
    reparse = bool(attributes & win32_files.FILE_ATTRIBUTE_REPARSE_POINT)
    node = Node(name=path, directory=directory, reparse=reparse, links=1 if directory else links)
    shown = path.removeprefix(EXTENDED_PREFIX)
    text = problem(node, shown=shown)
    final = _final_path(handle)
    if not text and final != base and not final.startswith(base + "\\"):
        text = f"{shown} was moved while it was looked at"
    if text:
        raise OSError(0, text, shown)
    return node


def _final_path(handle: int) -> str:
    return fold_path(win32_files.final_path(handle))


def with_path(error: OSError, path: str) -> OSError:
    """Return the same error with the path that it is about."""
    code = getattr(error, "winerror", None)
    return OSError(error.errno, error.strerror, path.removeprefix(EXTENDED_PREFIX), code)


HIDDEN = frozenset(secret_files.hidden_anywhere("windows"))
"""At any depth, in any grant."""
HIDDEN_AT_HOME = secret_files.hidden("windows")
STARTING = frozenset(secret_files.PROJECT)
STARTING_AT_HOME = secret_files.protected("windows")
REPOSITORY = tuple(f".git\\{name}" for name in secret_files.GIT)
DEEPEST = 2


def find(names: Iterable[str], access: Reach, place: str = "") -> tuple[str, ...]:
    """Return the outermost of the relative names of a tree that must not be granted with it.

    `place` is the path of the tree in the user's profile; empty if elsewhere.
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
