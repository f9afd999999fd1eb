"""The content-addressed cache of installed packages and unpacked bundles.

A tree is named by a SHA-256 over its paths, kinds, executable bits and contents. It is read-only,
and all entries of the same content share it. An entry is one small file, named by what was asked
for. Both appear by renaming, so that they are complete or absent. The directory is private, and no
target can get it, because it is inside corral's own cache.

A tree is hashed again at its first use after a boot, and by `corral cache verify`. Only the user
can write here, so the check is for broken disks and accidents. Reading thousands of files at each
start would cost more than the start itself.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress

from corral.directories import directories, refuse_shared
from corral.errors import SandboxError
from corral.programs.needed_files import list_names
from corral.record import fields, record
from corral.safe_text import is_digest
from corral.servers.store.locks import is_locked, lock_file
from corral.servers.store.tree import (
    READ_ONLY,
    check_tree,
    make_read_only,
    measure_tree,
    remove_tree,
    tree_digest,
)

FORMAT = 1


@record
class Entry:
    """What was stored under `key`. In `command` the word `{tree}` stands for the tree's path.

    `integrity` is the checksum that the package manager verified.
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


def store_path(*parts: str) -> str:
    return os.path.join(directories().cache, "store", *parts)


def tree_path(digest: str) -> str:
    return store_path("trees", digest)


def entry_path(key: str) -> str:
    from hashlib import sha256

    return store_path("entries", sha256(key.encode()).hexdigest() + ".json")


def make_directories() -> None:
    """Make the store. Refuse it if another user could have written there."""
    parts = ("trees", "entries", "locks", "verified", "files")
    for path in (store_path(), *map(store_path, parts)):
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            found = os.lstat(path)
        except OSError as error:
            hint = "XDG_CACHE_HOME names another place for it" if os.name == "posix" else None
            raise SandboxError(f"{path} cannot be made: {error.strerror}", hint=hint) from error
        refuse_shared(path, found, 0o077)


def find(key: str) -> Entry | None:
    """Return the entry of a key, if its tree exists and is unchanged."""
    for path in (store_path(), store_path("entries"), store_path("trees")):
        # With `sudo` and the user's own HOME the store would be another user's.
        try:
            refuse_shared(path, os.lstat(path), 0o077)
        except FileNotFoundError:
            return None
    entry = read_entry(entry_path(key))
    if entry is None or entry.key != key or not os.path.isdir(entry.path()):
        return None
    if not is_verified(entry.digest):
        verify(entry)
    return entry


def find_usable(key: str) -> Entry | None:
    """Return the entry of a key, unless the interpreter that it was made for is gone."""
    found = find(key)
    words = found.argv()[:1] if found else []
    return None if any(os.path.isabs(one) and not os.path.exists(one) for one in words) else found


def read_entry(path: str) -> Entry | None:
    try:
        with open(path, encoding="utf-8") as file:
            data: object = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        return None
    digest, command = data.get("digest"), data.pop("command", None)
    if not isinstance(digest, str) or not is_digest(digest):
        return None
    try:
        return Entry(command=tuple(map(str, command or ())), **data)
    except TypeError:
        return None


def commit(staging: str, entry: Mapping[str, object], *, allowed: tuple[str, ...] = ()) -> Entry:
    """Move a staging directory into the store as a tree, under the entry's key.

    `allowed` are links out of the tree that corral itself made.
    """
    make_directories()
    make_read_only(staging)
    check_tree(staging, allowed=allowed)
    digest = tree_digest(staging)
    size, files = measure_tree(staging)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    values = {"digest": digest, "created": now, "size": size, "files": files, **entry}
    with lock_all():
        _move_tree(staging, digest)
        mark_verified(digest)
        _write_entry(values)
    found = read_entry(entry_path(str(entry["key"])))
    if found is None:
        raise SandboxError("the cache could not be written")
    return found


def add_key(entry: Entry, key: str) -> None:
    """Store the same tree under one more key, unless that key exists already."""
    values = {name: getattr(entry, name) for name in fields(entry)}
    with lock_all():
        if read_entry(entry_path(key)) is None:
            _write_entry({**values, "key": key})


def _write_entry(values: Mapping[str, object]) -> None:
    content = json.dumps({"format": FORMAT, **values})
    write_file(entry_path(str(values["key"])), content.encode())


def _move_tree(staging: str, digest: str) -> None:
    import shutil

    path = tree_path(digest)
    if os.path.isdir(path) and tree_digest(path) == digest:
        remove_tree(staging)  # the same content is in the store already
        return
    discard_tree(digest)  # the tree of this name is damaged
    fresh = f"{path}.{os.urandom(8).hex()}"
    try:
        # A directory without write permission cannot be renamed: its `..` would change.
        os.chmod(staging, 0o700)
        try:
            os.rename(staging, fresh)
        except OSError:
            shutil.copytree(staging, fresh, symlinks=True)
            remove_tree(staging)
        os.chmod(fresh, READ_ONLY)
        os.rename(fresh, path)
    except OSError as error:
        remove_tree(fresh)
        if not os.path.isdir(path):
            raise SandboxError(f"the cache cannot be written: {error.strerror}") from error


def write_file(path: str, content: bytes) -> None:
    fresh = f"{path}.{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        with open(os.open(fresh, flags, 0o600), "wb") as file:
            file.write(content)
        os.replace(fresh, path)
    except OSError as error:
        raise SandboxError(f"the cache cannot be written: {error.strerror}") from error


def boot_id() -> str:
    """Return a text that changes at each boot; on other systems than Linux, each day."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return time.strftime("%Y-%m-%d")


def is_verified(digest: str) -> bool:
    try:
        with open(store_path("verified", digest), encoding="ascii") as file:
            return file.read() == boot_id()
    except OSError:
        return False


def mark_verified(digest: str) -> None:
    write_file(store_path("verified", digest), boot_id().encode())


def verify(entry: Entry) -> None:
    """Hash the tree again; raise if it has changed."""
    if tree_digest(entry.path()) != entry.digest:
        raise SandboxError(
            f"{entry.name} {entry.version} in the cache is not what was installed",
            hint=f"remove it with `corral cache rm {entry.key.split(' ')[0]}` and run again",
        )
    mark_verified(entry.digest)


def entries() -> list[Entry]:
    directory = store_path("entries")
    found = [read_entry(os.path.join(directory, name)) for name in list_names(directory)]
    return sorted((one for one in found if one), key=lambda one: one.key)


def remove(entry: Entry) -> None:
    """Remove an entry, and its tree if no other entry has it."""
    with lock_all():
        with suppress(FileNotFoundError):
            os.unlink(entry_path(entry.key))
        if not any(one.digest == entry.digest for one in entries()):
            discard_tree(entry.digest)


def lock_all() -> AbstractContextManager[None]:
    """Lock the store while trees and entries change together, so that no new tree is collected."""
    return lock_file(store_path("locks", "store"))


def collect_garbage() -> list[str]:
    """Remove leftovers, and return their paths."""
    with lock_all():
        gone = list(find_leftovers())
        for path in gone:
            remove_tree(path)
    return gone


def discard_tree(digest: str) -> None:
    """Remove a tree. It is renamed first, so that it is gone at once."""
    gone = f"{tree_path(digest)}.{os.urandom(8).hex()}"
    with suppress(OSError):
        os.chmod(tree_path(digest), 0o700)
        os.rename(tree_path(digest), gone)
        os.unlink(store_path("verified", digest))
    remove_tree(gone)


def lock_path(key: str) -> str:
    return store_path("locks", os.path.basename(entry_path(key)).removesuffix(".json"))


def lock_key(key: str) -> AbstractContextManager[None]:
    """Wait until no other process installs this key. Makes the store if need be."""
    make_directories()
    return lock_file(lock_path(key))


def staging_root() -> str:
    """Return a directory beside the cache: installers may write to it, but not to the cache."""
    return directories().cache + "-staging"


@contextmanager
def staging_directory(key: str) -> Iterator[str]:
    """Make a staging directory for a key, whose lock the caller has, and remove it at the end."""
    path = make_staging(key)
    try:
        yield path
    finally:
        remove_tree(path)


def make_staging(key: str) -> str:
    path = os.path.join(staging_root(), os.path.basename(lock_path(key))[:32])
    try:
        os.makedirs(staging_root(), mode=0o700, exist_ok=True)
        refuse_shared(staging_root(), os.lstat(staging_root()), 0o077)
        remove_tree(path)  # left by a run that was killed
        os.mkdir(path, 0o700)
    except OSError as error:
        raise SandboxError(f"{path} cannot be made: {error.strerror}") from error
    return path


def find_leftovers() -> Iterator[str]:
    """Yield trees without an entry, and staging directories of installations that were killed."""
    used = {one.digest for one in entries()}
    trees, locks = store_path("trees"), store_path("locks")
    for name in list_names(trees):
        if name not in used:
            yield os.path.join(trees, name)
    busy = {name[:32] for name in list_names(locks) if is_locked(os.path.join(locks, name))}
    for name in list_names(staging_root()):
        if name not in busy:
            yield os.path.join(staging_root(), name)
