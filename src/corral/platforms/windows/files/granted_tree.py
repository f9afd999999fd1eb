"""List the objects below a granted root for the plan, and walk them by handle.

An object is a file or a directory. The walk is used to set access lists, so it must not leave its
tree. It opens each object without following links, and then checks the handle: the object must be
neither a link nor a mount point, and its path must be below the root. If another program has
replaced the object in the meantime, the check fails. corral sets the access list entries of each
object itself. Windows could pass the entries of a directory on to all objects in it, but Windows
would open these objects by name, without such a check.

Setting the entries of one object takes a few tenths of a millisecond, so the number of objects in a
tree is limited.
"""

import os
import stat
from collections.abc import Callable, Collection, Container, Generator, Iterable
from contextlib import AbstractContextManager
from functools import cache

from corral.abi import win32_files, win32_security, win32_token
from corral.abi.win32 import Handle
from corral.paths.links import NAME_SURROGATE, is_name_surrogate
from corral.paths.windows import EXTENDED_PREFIX, extended_path, fold_path
from corral.platforms.windows.files import access_list
from corral.policy import secret_files
from corral.record import record

MAX_ENTRIES = 20_000
USES = win32_token.FILE_READ_DATA | win32_token.FILE_WRITE_DATA


@record
class Node:
    name: str  # relative to the root, whose own name is ""
    directory: bool
    reparse: bool = False  # a link or a mount point
    links: int = 1  # the number of names that a file has


@record
class Tree:
    """The objects of a granted tree.

    The target gets access to an object by an entry in the object's access list. The objects named
    in `closed` and `foreign`, and everything below them, get no such entry. An object is closed if
    it is a secret or if the target uses a copy of it. It is foreign if the user cannot change its
    access list.
    """

    nodes: tuple[Node, ...]  # the objects that get entries in their access lists
    closed: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    whole: bool = True  # False if the tree has more than MAX_ENTRIES objects
    readable: bool = True  # False if only administrators can read the root


Predicate = Callable[[str], bool]


def read_tree(
    root: str,
    *,
    is_closed: Predicate = lambda _name: False,
    is_foreign: Predicate = lambda _path: False,
) -> Tree:
    """List a tree.

    `is_closed` is called with names relative to `root`, and `is_foreign` with paths that begin with
    EXTENDED_PREFIX.
    """
    nodes: list[Node] = []
    closed: list[str] = []
    foreign: list[str] = []
    pending = [""]
    while pending and len(nodes) < MAX_ENTRIES:
        name = pending.pop()
        path = os.path.join(extended_path(root), *name.split("\\")) if name else extended_path(root)
        if name and is_closed(name):
            closed.append(name)
            continue
        if name and is_foreign(path):
            foreign.append(name)
            continue
        node = _node(name, os.lstat(path))
        nodes.append(node)
        if node.directory and not node.reparse:
            below = os.listdir(path)
            pending += [f"{name}\\{entry}" if name else entry for entry in below]
    return Tree(nodes=tuple(nodes), closed=tuple(closed), foreign=tuple(foreign), whole=not pending)


def is_foreign(path: str) -> bool:
    """Return whether this user lacks the right to change the object's access list."""
    try:
        open_object(path).close()
    except PermissionError:
        return True
    return False


def is_readable(path: str, sids: Collection[str]) -> bool:
    """Return whether a token that has only these SIDs may read the object."""
    with open_object(path, change=False) as handle:
        raw = win32_security.read_security(handle.value, owner=True)
    return access_list.is_readable(raw, sids)


def _node(name: str, found: os.stat_result) -> Node:
    directory = stat.S_ISDIR(found.st_mode)
    # Ignore the link count of a directory, because it can include the subdirectories. It then says
    # nothing about the number of the directory's own names.
    links = 1 if directory else found.st_nlink
    return Node(name=name, directory=directory, reparse=is_name_surrogate(found), links=links)


def problem(node: Node, *, shown: str) -> str:
    text = f"{shown} is a link or a mount point, which corral does not follow"
    return text if node.reparse else ""


def open_object(path: str, *, change: bool = True) -> Handle:
    """Open an object with the right to read its access list and, with `change`, to change it."""
    access = win32_files.READ_CONTROL | (win32_files.WRITE_DAC if change else 0)
    try:
        return win32_files.open_itself(extended_path(path), access=access)
    except OSError as error:
        raise with_path(error, path) from error


def mutex(sid: str) -> AbstractContextManager[None]:
    """Return a mutex. The caller locks it while it checks or changes the access list entries of
    this SID.
    """
    with win32_token.own_token(win32_security.TOKEN_QUERY) as own:
        user = win32_security.format_sid(win32_token.token_user(own.value))
    # The mutex is shared by all sessions of this user, elevated or not.
    security = f"D:(A;;GA;;;SY)(A;;GA;;;{user})S:(ML;;NW;;;ME)"
    return win32_files.own_mutex(f"Global\\corral-{user}-{sid}", security)


def set_entries(path: str, handle: int, sid: str, entries: tuple[bytes, ...]) -> bool:
    """Set the entries of this SID in an object's access list. Return whether the list changed."""
    try:
        changed = access_list.grant(win32_security.read_security(handle), sid, entries)
        if changed is not None:
            win32_security.write_security(handle, changed)
    except access_list.Unusable as error:
        raise OSError(0, str(error), path) from error
    except OSError as error:
        raise with_path(error, path) from error
    return changed is not None


def check_closed(path: str, handle: int) -> None:
    """Raise OSError if the access list of a secret object lets every AppContainer use the object,
    or new objects in it. corral could not hide such an object from the target.
    """
    raw = win32_security.read_security(handle)
    if access_list.allowed_rights(raw, access_list.CONTAINERS, below=True) & USES:
        text = "every AppContainer may use this object, so corral cannot hide it from the target"
        raise OSError(0, f"{text}; `icacls FILE /remove *S-1-15-2-1` removes this access", path)


def check_entry(path: str, sid: str, problem: str) -> None:
    with open_object(path) as handle:
        if not access_list.has_entry(win32_security.read_security(handle.value), sid):
            raise OSError(0, problem, path)


def walk(root: str, closed: Container[str] = ()) -> Generator[tuple[Node, Handle], None, None]:
    """Yield every object of a tree with its handle, parents first.

    Yield the objects named in `closed` too, but do not enter these directories. Each handle is
    closed when the caller requests the next object. A directory is listed only after the caller has
    set its access list, so that objects created after the listing inherit the new list.
    """
    with open_object(root) as top:
        base = _final_path(top.value)
        pending = [""]
        while pending:
            name = pending.pop()
            path = os.path.join(extended_path(root), *name.split("\\")) if name else root
            with _open_to_set(path, less=name in closed) as handle:
                node = _check(name, extended_path(path), handle.value, base)
                yield node, handle
            if node.directory and name not in closed:
                below = os.listdir(extended_path(path))
                pending += [f"{name}\\{entry}" if name else entry for entry in below]


def _open_to_set(path: str, *, less: bool) -> Handle:
    """Open an object with the right to change its access list.

    If this is denied and `less` is true, open it with the right to read the list. `less` is true
    for objects that get no entry in their access lists.
    """
    try:
        return open_object(path)
    except PermissionError:
        if not less:
            raise
    return open_object(path, change=False)


def has_identity(handle: int, volume: int, file: int) -> bool:
    """Return whether a handle refers to the object with these ids of its volume and file.

    The ids come from Python's `stat`. Depending on the version of Python, they have Windows' short
    or wide form, so compare them with both.
    """
    if win32_files.information(handle)[2] == (volume, file):
        return True
    try:
        return win32_files.wide_identity(handle) == (volume, file)
    except OSError:
        return False  # this file system has no wide ids


def is_directory(handle: int) -> bool:
    attributes = win32_files.information(handle)[0]
    return bool(attributes & win32_files.FILE_ATTRIBUTE_DIRECTORY) and not _leads_elsewhere(
        handle, attributes
    )


def _leads_elsewhere(handle: int, attributes: int) -> bool:
    """Return whether an object is a link or a mount point.

    Links and mount points are reparse points. OneDrive's files are reparse points too, but do not
    lead to another path.
    """
    if not attributes & win32_files.FILE_ATTRIBUTE_REPARSE_POINT:
        return False
    return bool(win32_files.reparse_tag(handle) & NAME_SURROGATE)


def _check(name: str, path: str, handle: int, base: str) -> Node:
    attributes, links, _ = win32_files.information(handle)
    directory = bool(attributes & win32_files.FILE_ATTRIBUTE_DIRECTORY)
    reparse = _leads_elsewhere(handle, attributes)
    node = Node(name=name, directory=directory, reparse=reparse, links=1 if directory else links)
    shown = path.removeprefix(EXTENDED_PREFIX)
    text = problem(node, shown=shown)
    final = _final_path(handle)
    if not text and final != base and not final.startswith(base + "\\"):
        text = f"{shown} was moved while it was being checked"
    if text:
        raise OSError(0, text, shown)
    return node


def _final_path(handle: int) -> str:
    return fold_path(win32_files.final_path(handle))


def with_path(error: OSError, path: str) -> OSError:
    code = getattr(error, "winerror", None)
    return OSError(error.errno, error.strerror, path.removeprefix(EXTENDED_PREFIX), code)


HIDDEN = frozenset(secret_files.hidden_anywhere("windows"))
"""Names that are hidden at any depth of any grant."""
HIDDEN_AT_HOME = secret_files.hidden("windows")
STARTING = frozenset(name.replace("/", "\\") for name in secret_files.PROJECT)
STARTING_AT_HOME = secret_files.protected("windows")
REPOSITORY = tuple(f".git\\{name}" for name in secret_files.GIT)
DEEPEST = 2


def is_secret(name: str, in_home: str = "") -> bool:
    """Return whether a file in a granted tree is hidden from the target.

    `name` is relative to the tree. `in_home` is the tree's path relative to the user's profile
    directory, or "" if the tree is not inside that directory.
    """
    lower = name.lower()
    last = lower.rpartition("\\")[2]
    if last in HIDDEN or lower in _relative(HIDDEN_AT_HOME, in_home):
        return True
    return lower.count("\\") < DEEPEST and secret_files.is_environment_file(last)


def is_starting(name: str, in_home: str = "") -> bool:
    """Return whether other programs run a file with this name, or read commands from it.

    A target must not change such a file. `name` and `in_home` are as in `is_secret`.
    """
    lower = name.lower()
    if lower in _relative(STARTING_AT_HOME, in_home):
        return True
    near = lower.count("\\") <= DEEPEST + 1
    parts = lower.split("\\")
    tail = "\\".join(parts[-2:])
    return near and (parts[-1] in STARTING or tail in STARTING or tail in REPOSITORY)


def absent(names: Iterable[str], in_home: str = "") -> tuple[str, ...]:
    """Return the names of files that are dangerous for a target to create, and that do not exist in
    a tree with these `names`.

    Other programs would run such a file or read commands from it.
    """
    there = {name.lower() for name in names}
    wanted = (*sorted(STARTING), *REPOSITORY, *sorted(_relative(STARTING_AT_HOME, in_home)))
    return tuple(name for name in wanted if name not in there)


@cache
def _relative(at_home: tuple[str, ...], in_home: str) -> frozenset[str]:
    """Return the paths in `at_home` that are below `in_home`, relative to `in_home` and in lower
    case.

    `at_home` and `in_home` are relative to the user's profile directory.
    """
    if not in_home:
        return frozenset()
    below = f"{in_home}\\".lower()
    paths = [name.replace("/", "\\").lower() for name in at_home]
    return frozenset(path.removeprefix(below) for path in paths if path.startswith(below))
