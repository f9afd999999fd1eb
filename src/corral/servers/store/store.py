"""Keep installed packages and unpacked bundles in a content-addressed cache.

A tree contains the files of an installation. It is read-only, and its name is a SHA-256 over its
paths, kinds, executable bits and contents. An entry is one small file, named by a key that
describes what was installed. Entries with the same content share one tree. Trees and entries are
always complete, because each is written under a temporary name and then renamed. The store is
inside corral's own cache, so it is private and is never granted to a target.

A tree is hashed again at its first use after a boot, and by `corral cache verify`. Hashing
thousands of files at each start would take longer than the start itself. Only the user can write
to the store, so the check is there to find broken disks and accidents, not attacks.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from corral.abi.private_directory import lock, make_private_directory
from corral.abi.whole_file import discard_leftovers, replace_file
from corral.directories import STAGING, directories, refuse_shared
from corral.disk_hints import disk_hint
from corral.errors import SandboxError
from corral.formats.light import parse_json, sha256
from corral.programs.needed_files import list_names
from corral.record import fields, record
from corral.safe_text import is_digest, shell_word
from corral.servers.store.locks import Lock, is_locked
from corral.servers.store.tree import (
    READ_ONLY,
    check_tree,
    make_read_only,
    measure_tree,
    remove_tree,
    tree_digest,
)

FORMAT = 1
DOWNLOADS = ".downloads"
ENTRY = ".json"
KEPT_DOWNLOADS_SECONDS = 24 * 3600


class UnfinishedError(SandboxError):
    """Raised if an installation has failed but can be continued later with the files that were
    already downloaded.

    After any other error the downloads are removed, because a wrong archive may have left wrong
    metadata in the package manager's cache.
    """


@record
class Entry:
    key: str
    kind: str
    name: str
    version: str
    digest: str
    command: tuple[str, ...]  # `{tree}` is replaced with the tree's path
    origin: str = ""
    index: str = ""  # the index from which all packages came, or "" if there is not exactly one
    integrity: str = ""  # the checksum that the installer verified
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
    return store_path("entries", sha256(key.encode()).hexdigest() + ENTRY)


def make_directories() -> None:
    """Make the directories of the store. Refuse an existing directory if it belongs to another
    user, or if other users have access to it.
    """
    parts = ("trees", "entries", "locks", "verified", "files")
    for path in (store_path(), *map(store_path, parts)):
        try:
            make_private_directory(path)
            found = os.lstat(path)
        except OSError as error:
            raise _unwritable(path, error) from error
        refuse_shared(path, found, 0o077)


def find(key: str) -> Entry | None:
    """Return the entry for `key`, or None if there is none. At the first use after a boot, raise
    SandboxError if its tree has changed since the installation.
    """
    for path in (store_path(), store_path("entries"), store_path("trees")):
        # Do not use a store that belongs to another user. This happens, for example, if corral runs
        # with `sudo` while HOME is still the home of the user who called it.
        try:
            refuse_shared(path, os.lstat(path), 0o077)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unwritable(path, error) from error
    entry = read_entry(entry_path(key))
    if entry is None or entry.key != key or not os.path.isdir(entry.path()):
        return None
    if not is_verified(entry.digest):
        verify(entry)
    return entry


def find_usable(key: str) -> Entry | None:
    """Return the entry for `key`, or None if there is none, or if its interpreter is gone."""
    found = find(key)
    words = found.argv()[:1] if found else []
    return None if any(os.path.isabs(one) and not os.path.exists(one) for one in words) else found


def read_entry(path: str) -> Entry | None:
    try:
        with open(path, encoding="utf-8") as file:
            data = parse_json(file.read())
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
    """Move a staging directory into the store as a tree, under the entry's key. `allowed` lists the
    links that may lead out of the tree, because corral made them itself.
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


def add_key(entry: Entry, key: str, *, replace: bool = False) -> None:
    """Store a copy of the entry under another key. If that key already has an entry, replace it
    only if `replace` is set.
    """
    values = {name: getattr(entry, name) for name in fields(entry)}
    with lock_all():
        if replace or read_entry(entry_path(key)) is None:
            _write_entry({**values, "key": key})


def _write_entry(values: Mapping[str, object]) -> None:
    import json

    content = json.dumps({"format": FORMAT, **values})
    write_file(entry_path(str(values["key"])), content.encode())


def _move_tree(staging: str, digest: str) -> None:
    import shutil

    path = tree_path(digest)
    if os.path.isdir(path) and tree_digest(path) == digest:
        remove_tree(staging)  # the same content is already in the store
        return
    discard_tree(digest)  # if there is still a tree with this name, it is damaged
    fresh = f"{path}.{os.urandom(8).hex()}"
    try:
        # Moving a directory needs write permission for it, because its `..` entry changes.
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
            raise _unwritable(path, error) from error


def write_file(path: str, content: bytes) -> None:
    try:
        replace_file(path, content)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: str, error: OSError) -> SandboxError:
    hint = disk_hint(error, path, "set XDG_CACHE_HOME to another directory that you own")
    return SandboxError(f"{path} cannot be written: {error.strerror}", hint=hint)


def boot_id() -> str:
    """Return a string that changes at each boot. On systems other than Linux, it changes each day
    instead.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return time.strftime("%Y-%m-%d")


def is_verified(digest: str) -> bool:
    try:
        with open(store_path("verified", digest), encoding="utf-8") as file:
            return file.read() == boot_id()
    except OSError:
        return False


def mark_verified(digest: str) -> None:
    write_file(store_path("verified", digest), boot_id().encode())


def verify(entry: Entry) -> None:
    """Hash an entry's tree again. Raise SandboxError if the tree has changed."""
    if tree_digest(entry.path()) != entry.digest:
        raise describe_damage(entry, "has changed since its installation")
    mark_verified(entry.digest)


def describe_damage(entry: Entry, what: str) -> SandboxError:
    word = shell_word(entry.key.partition(" ")[0])
    return SandboxError(
        f"{entry.name} {entry.version} in the cache {what}",
        hint=f"remove it with `corral cache rm {word}` and run again",
    )


def entries() -> list[Entry]:
    directory = store_path("entries")
    names = [name for name in list_names(directory) if name.endswith(ENTRY)]
    found = [read_entry(os.path.join(directory, name)) for name in names]
    return sorted((one for one in found if one), key=lambda one: one.key)


def remove(entry: Entry) -> None:
    """Remove an entry. Also remove its tree, unless another entry or a run still uses the tree. A
    tree that only a run uses is removed by a later garbage collection.
    """
    with lock_all():
        try:
            os.unlink(entry_path(entry.key))
        except FileNotFoundError:
            pass
        _discard_unneeded(entry.digest)


def discard_unneeded(digest: str) -> None:
    """Remove a tree, unless an entry or a run uses it."""
    with lock_all():
        _discard_unneeded(digest)


def _discard_unneeded(digest: str) -> None:
    if not any(one.digest == digest for one in entries()) and not is_used(tree_path(digest)):
        discard_tree(digest)


def lock_all() -> Lock:
    """Return the lock of the store, which is needed for changes to a tree and its entry. Without
    this lock, another process could remove a new tree as garbage before the tree has an entry.
    """
    return Lock(store_path("locks", "store"))


def collect_garbage() -> list[str]:
    """Remove all paths that `find_leftovers` finds, and return them."""
    with lock_all():
        for part in ("entries", "verified"):
            discard_leftovers(store_path(part))
        gone = list(find_leftovers())
        for path in gone:
            remove_tree(path)
    return gone


def discard_tree(digest: str) -> None:
    """Rename a tree, so that no new run can find it, and then remove it. If a run still uses the
    tree, its files stay until a later garbage collection.
    """
    gone = f"{tree_path(digest)}.{os.urandom(8).hex()}"
    try:
        os.chmod(tree_path(digest), 0o700)
        os.rename(tree_path(digest), gone)
        os.unlink(store_path("verified", digest))
    except OSError:
        pass
    if not is_used(gone):
        remove_tree(gone)


def is_used(tree: str) -> bool:
    """Return whether a run has locked a tree. On Windows return False. Runs need no locks there,
    because Windows refuses to remove open files.
    """
    if sys.platform == "win32" or not os.path.isdir(tree):
        return False
    descriptor = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        lock(descriptor, wait=False)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def lock_path(key: str) -> str:
    return store_path("locks", os.path.basename(entry_path(key)).removesuffix(ENTRY))


def lock_key(key: str, waits: Callable[[], None] = lambda: None) -> Lock:
    """Return the lock of a key. A process takes this lock before it installs a package under the
    key, so that no other process installs the package at the same time. If the store does not
    exist, make it.
    """
    make_directories()
    return Lock(lock_path(key), waits)


def staging_root() -> str:
    """Return a directory beside the cache. Installers may write to this directory, but not to the
    cache.
    """
    return directories().cache + STAGING


class StagingDirectory:
    """A context manager that makes the staging directory of a key and removes it at the end. The
    caller must have locked the key.

    The downloads of an unfinished installation are kept, but only for the same key, because the
    installer of one package must not influence another package.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._path = ""

    def __enter__(self) -> str:
        self._path = make_staging(self._key)
        return self._path

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            is_refused = isinstance(error, SandboxError) and not isinstance(error, UnfinishedError)
            if error is None or is_refused:
                remove_tree(self._path + DOWNLOADS)
        finally:
            remove_tree(self._path)


def make_staging(key: str) -> str:
    path = os.path.join(staging_root(), os.path.basename(lock_path(key))[:32])
    try:
        make_private_directory(staging_root())
        refuse_shared(staging_root(), os.lstat(staging_root()), 0o077)
        remove_tree(path)  # a killed run may have left it
        make_private_directory(path)
        _discard_old_downloads()
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def make_downloads(staging: str) -> str:
    """Make the directory for an installer's downloads, beside its staging directory."""
    path = staging + DOWNLOADS
    make_private_directory(path)
    os.utime(path)
    return path


def _discard_old_downloads() -> None:
    for path in find_idle_staging():
        try:
            age = time.time() - os.lstat(path).st_mtime
        except FileNotFoundError:
            continue  # another process has removed it
        if path.endswith(DOWNLOADS) and age > KEPT_DOWNLOADS_SECONDS:
            remove_tree(path)


def find_leftovers() -> Iterator[str]:
    """Yield trees without an entry, and the files of installations that failed or were killed."""
    used = {one.digest for one in entries()}
    trees = store_path("trees")
    for name in list_names(trees):
        if name not in used and not is_used(os.path.join(trees, name)):
            yield os.path.join(trees, name)
    yield from find_idle_staging()


def find_idle_staging() -> Iterator[str]:
    """Yield the paths in the staging root that no running installation uses."""
    root, locks = staging_root(), store_path("locks")
    try:
        refuse_shared(root, os.lstat(root), 0o077)
    except (FileNotFoundError, SandboxError):
        return  # the staging root is missing, or other users have access to it
    busy = {name[:32] for name in list_names(locks) if is_locked(os.path.join(locks, name))}
    for name in list_names(root):
        if name[:32] not in busy:
            yield os.path.join(root, name)
