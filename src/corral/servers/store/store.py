"""The content-addressed cache of what was installed or unpacked.

A tree is named by a SHA-256 over its paths, kinds, executable bits and contents; it is read-only
and shared by all entries that lead to it. An entry is one small file, named by what was asked for.
Both appear by renaming, so that they are whole or not there. The directory is private, lies in the
cache of corral itself, and so can never be granted to a target.

A tree is hashed again at its first use after a boot, and by `corral cache verify`: nobody but the
user can write here, so what the check finds is a broken disk or a careless hand, and reading
thousands of files at each start would cost more than the start itself.
"""

from __future__ import annotations

import json
import os
import shutil
import time

from corral.directories import directories, refuse_shared
from corral.errors import SandboxError
from corral.record import fields, record
from corral.safe_text import is_digest
from corral.servers.store import locks
from corral.servers.store.tree import READ_ONLY, check, freeze, measure, remove_tree, tree_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

FORMAT = 1


@record
class Entry:
    """What `key` led to. In `command` the word `{tree}` stands for the tree's path.

    `integrity` is what the package manager verified; `lock` the file in the tree that lists it.
    """

    key: str
    kind: str
    name: str
    version: str
    digest: str
    command: tuple[str, ...]
    origin: str = ""
    integrity: str = ""
    created: str = ""
    size: int = 0
    files: int = 0

    def path(self) -> str:
        return tree_path(self.digest)

    def argv(self) -> list[str]:
        return [word.replace("{tree}", self.path()) for word in self.command]


def root() -> str:
    return os.path.join(directories().cache, "store")


def tree_path(digest: str) -> str:
    return os.path.join(root(), "trees", digest)


def entry_path(key: str) -> str:
    from hashlib import sha256

    return os.path.join(root(), "entries", sha256(key.encode()).hexdigest() + ".json")


def make() -> None:
    """The directories, refused if anybody else could have put something there."""
    for part in ("", "trees", "entries", "locks", "verified", "files"):
        path = os.path.join(root(), part) if part else root()
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            found = os.lstat(path)
        except OSError as error:
            hint = "XDG_CACHE_HOME names another place for it" if os.name == "posix" else None
            raise SandboxError(f"{path} cannot be made: {error.strerror}", hint=hint) from error
        refuse_shared(path, found, 0o077)


def find(key: str) -> Entry | None:
    """The entry, if its tree is there and is still what it was."""
    for path in (root(), os.path.join(root(), "entries"), os.path.join(root(), "trees")):
        # Somebody else's, as with `sudo` and the user's own HOME: its entries are their word.
        try:
            refuse_shared(path, os.lstat(path), 0o077)
        except FileNotFoundError:
            return None
    entry = read(entry_path(key))
    if entry is None or entry.key != key or not os.path.isdir(entry.path()):
        return None
    if not verified(entry.digest):
        verify(entry)
    return entry


def read(path: str) -> Entry | None:
    try:
        with open(path, encoding="utf-8") as file:
            data: object = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        return None
    command = data.pop("command", None)
    try:
        entry = Entry(command=tuple(map(str, command or ())), **data)
    except TypeError:
        return None
    return entry if is_digest(entry.digest) else None


def adopt(staged: str, entry: Mapping[str, object], *, allowed: tuple[str, ...] = ()) -> Entry:
    """Make what lies in `staged` a tree, and remember it under the entry's key.

    `allowed` are links out of it that corral itself made.
    """
    make()
    freeze(staged)
    check(staged, allowed=allowed)
    digest = tree_digest(staged)
    size, files = measure(staged)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    values = {"digest": digest, "created": now, "size": size, "files": files, **entry}
    with whole():
        _move(staged, tree_path(digest))
        mark_verified(digest)
        write(entry_path(str(entry["key"])), json.dumps({"format": FORMAT, **values}).encode())
    found = read(entry_path(str(entry["key"])))
    if found is None:
        raise SandboxError("the cache could not be written")
    return found


def also(entry: Entry, key: str) -> None:
    """One more key that leads to the same tree, unless it leads somewhere already."""
    values = {name: getattr(entry, name) for name in fields(entry)}
    with whole():
        if read(entry_path(key)) is None:
            content = json.dumps({"format": FORMAT, **values, "key": key})
            write(entry_path(key), content.encode())


def _move(staged: str, place: str) -> None:
    digest = os.path.basename(place)
    if os.path.isdir(place) and tree_digest(place) == digest:
        remove_tree(staged)  # the same content is here already
        return
    discard(digest)  # what lies there under this name is something else
    fresh = f"{place}.{os.urandom(8).hex()}"
    try:
        # A directory without write permission cannot be renamed: its `..` would change.
        os.chmod(staged, 0o700)
        try:
            os.rename(staged, fresh)
        except OSError:
            shutil.copytree(staged, fresh, symlinks=True)
            remove_tree(staged)
        os.chmod(fresh, READ_ONLY)
        os.rename(fresh, place)
    except OSError as error:
        remove_tree(fresh)
        if not os.path.isdir(place):
            raise SandboxError(f"the cache cannot be written: {error.strerror}") from error


def write(path: str, content: bytes) -> None:
    fresh = f"{path}.{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        with open(os.open(fresh, flags, 0o600), "wb") as file:
            file.write(content)
        os.replace(fresh, path)
    except OSError as error:
        raise SandboxError(f"the cache cannot be written: {error.strerror}") from error


def boot() -> str:
    """What changes when the machine starts anew; elsewhere than on Linux, the day."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return time.strftime("%Y-%m-%d")


def verified(digest: str) -> bool:
    try:
        with open(os.path.join(root(), "verified", digest), encoding="ascii") as file:
            return file.read() == boot()
    except OSError:
        return False


def mark_verified(digest: str) -> None:
    write(os.path.join(root(), "verified", digest), boot().encode())


def verify(entry: Entry) -> None:
    """Hash the tree again; raises when it is not what was stored."""
    if tree_digest(entry.path()) != entry.digest:
        raise SandboxError(
            f"{entry.name} {entry.version} in the cache is not what was installed",
            hint=f"remove it with `corral cache rm {entry.key.split(' ')[0]}` and run again",
        )
    mark_verified(entry.digest)


def entries() -> list[Entry]:
    try:
        names = sorted(os.listdir(os.path.join(root(), "entries")))
    except OSError:
        return []
    found = [read(os.path.join(root(), "entries", name)) for name in names]
    return sorted((one for one in found if one), key=lambda one: one.key)


def remove(entry: Entry) -> None:
    """Forget an entry, and its tree when no other entry leads to it."""
    with whole():
        try:
            os.unlink(entry_path(entry.key))
        except FileNotFoundError:
            pass
        if not any(one.digest == entry.digest for one in entries()):
            discard(entry.digest)


def whole() -> AbstractContextManager[None]:
    """Held while trees and entries change together: no tree is taken for a leftover in between."""
    return locks.held(os.path.join(root(), "locks", "store"))


def collect() -> list[str]:
    """Take away what nothing leads to."""
    with whole():
        gone = list(leftovers())
        for path in gone:
            remove_tree(path)
    return gone


def discard(digest: str) -> None:
    """Take a tree away at once, whatever is left of it later."""
    gone = f"{tree_path(digest)}.{os.urandom(8).hex()}"
    try:
        os.chmod(tree_path(digest), 0o700)
        os.rename(tree_path(digest), gone)
        os.unlink(os.path.join(root(), "verified", digest))
    except OSError:
        pass
    remove_tree(gone)


def lock_path(key: str) -> str:
    return os.path.join(root(), "locks", os.path.basename(entry_path(key)).removesuffix(".json"))


def staging() -> str:
    """Beside the cache and not in it: what is installed here is granted to the installer."""
    return directories().cache + "-staging"


def staged(key: str) -> str:
    """A fresh directory for installing `key`, whose lock the caller holds."""
    path = os.path.join(staging(), os.path.basename(lock_path(key))[:32])
    try:
        os.makedirs(staging(), mode=0o700, exist_ok=True)
        refuse_shared(staging(), os.lstat(staging()), 0o077)
        remove_tree(path)  # left by a run that was killed
        os.mkdir(path, 0o700)
    except OSError as error:
        raise SandboxError(f"{path} cannot be made: {error.strerror}") from error
    return path


def leftovers() -> Iterator[str]:
    """Trees that nothing leads to, and what killed installations left; not what is being made."""
    used = {one.digest for one in entries()}
    trees = os.path.join(root(), "trees")
    for name in _names(trees):
        if name not in used:
            yield os.path.join(trees, name)
    busy = {name[:32] for name in _names(os.path.join(root(), "locks")) if _is_held(name)}
    for name in _names(staging()):
        if name not in busy:
            yield os.path.join(staging(), name)


def _is_held(name: str) -> bool:
    return locks.is_held(os.path.join(root(), "locks", name))


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
