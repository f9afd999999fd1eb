"""Cache the directories below a grant in which corral found no secrets and no repositories.

The kernel updates a directory's change time when a file in it is added, removed or renamed, and
when the directory's mode changes. Programs cannot set this time back. So one system call, which
reads the change time, shows whether corral has to list a directory again.

Only directories on the file systems in FILE_SYSTEMS are cached, because their change times are
reliable. Encrypted directories are not cached: when their key is added to the kernel or removed,
the names of the files change, but the change time does not.
"""

from __future__ import annotations

import itertools
import marshal
import os
import struct
import sys
import time

from corral import __version__
from corral.abi import linux as abi
from corral.abi.private_directory import checksum, read_checked_file, write_checked_file
from corral.directories import directories
from corral.paths.mounts import find_file_system

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable

    # Maps a directory's inode to (change time, names of the subdirectories with "/" between them).
    Known = dict[int, tuple[int, str]]

FILE_SYSTEMS = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "zfs", "f2fs", "bcachefs")
)
"""The file systems with reliable change times.

vfat is missing because its root has no times. Network file systems and overlayfs are missing
because their files can change elsewhere: on a server, or in a lower directory.
"""
LINK_COUNTS = frozenset(("ext2", "ext3", "ext4", "xfs", "tmpfs", "f2fs", "zfs"))
"""The file systems where a directory without subdirectories has exactly two links.

A directory with subdirectories never has two links there. So the search does not have to check
which entries are directories.
"""
MAX_LEAF_BYTES = 1 << 16
"""The maximum size of a directory that is always listed completely.

This applies to directories without subdirectories, even if the search should read fewer names. On
the file systems in LINK_COUNTS a directory of this size cannot have many names.
"""
RULES = ("mechanisms/masks.py", "../../policy/secret_files.py")
"""The files with the rules of the search. When one of them changes, the cache is discarded."""
SETTLED_NS = 2_000_000_000
"""A directory that changed in the last two seconds is not cached, because change times are not
exact: a second change soon after the first can have the same time.
"""
MIN_DIRECTORIES = 50


class SearchedDirectories:
    """A cache of the directories below `top` that are on the same file system as `top`.

    The cache stays empty if `keep` is false, or if this file system is not in FILE_SYSTEMS.
    """

    def __init__(self, top: str, *, keep: bool) -> None:
        self._top = top
        self._device = -1
        self._can_encrypt = True
        kind = find_file_system(top) if keep else ""
        self._counts_links = kind in LINK_COUNTS
        if kind in FILE_SYSTEMS:
            self._device = os.lstat(top).st_dev
            self._can_encrypt = abi.supports_encryption(top)
        self._settled = time.time_ns() - SETTLED_NS
        self._known: Known = self._read()
        self._kept: Known = {}

    def find(self, directory: str) -> list[str] | None:
        """Return the names of a directory's subdirectories from the cache.

        Return None if the directory is not in the cache, or has changed since.
        """
        if not self._known:
            return None
        try:
            seen = os.lstat(directory)
        except OSError:
            return None
        known = self._known.get(seen.st_ino)
        if known is None or known[0] != seen.st_ctime_ns or seen.st_dev != self._device:
            return None
        self._kept[seen.st_ino] = known
        return known[1].split("/") if known[1] else []

    def list_names(self, fd: int, seen: os.stat_result, most: int) -> tuple[list[str], list[str]]:
        """Return the names in an open directory, and the names of its subdirectories.

        `seen` is the directory's status. Stop after `most` names. A small directory without
        subdirectories is always listed completely.
        """
        is_small = seen.st_nlink == 2 and seen.st_size <= MAX_LEAF_BYTES
        if is_small and self._counts_links and seen.st_dev == self._device:
            return os.listdir(fd), []
        with os.scandir(fd) as entries:
            listed = list(itertools.islice(entries, most))
        inner = [entry.name for entry in listed if entry.is_dir(follow_symlinks=False)]
        return [entry.name for entry in listed], inner

    def add(self, fd: int, seen: os.stat_result, names: Iterable[str]) -> None:
        """Cache an open directory.

        `names` lists its subdirectories. `seen` is the directory's status from before the listing.
        Do nothing if the directory could be encrypted, or if it had changed less than two seconds
        before this object was made (SETTLED_NS says why).
        """
        if seen.st_dev == self._device and seen.st_ctime_ns < self._settled:
            try:
                if not (self._can_encrypt and abi.is_encrypted(fd)):
                    self._kept[seen.st_ino] = (seen.st_ctime_ns, "/".join(names))
            except OSError:
                pass  # the kernel cannot tell whether the directory is encrypted

    def save(self) -> None:
        if len(self._kept) < MIN_DIRECTORIES or self._kept == self._known:
            return
        times, names = zip(*self._kept.values(), strict=True)
        try:
            numbers = struct.pack(f"={2 * len(times)}Q", *self._kept, *times)
            body = marshal.dumps((self._top, _identify_rules(), numbers, "\0".join(names)))
            write_checked_file(self._path(), body)
        except (OSError, struct.error):
            pass  # without the file, the next search only takes longer

    def _read(self) -> Known:
        if self._device < 0:
            return {}
        try:
            body = read_checked_file(self._path())
            top, rules, numbers, names = marshal.loads(body)  # noqa: S302 - our own
            if (top, rules) != (self._top, _identify_rules()):
                return {}
            values = memoryview(numbers).cast("Q")
            half = len(values) // 2
            entries = zip(values[half:], names.split("\0"), strict=True)
            return dict(zip(values[:half], entries, strict=True))
        except (OSError, ValueError, EOFError, TypeError):
            return {}

    def _path(self) -> str:
        # Use the id of the file system in the name of the cache file, not its device number,
        # because another file system can get the same device number later.
        where = f"{os.statvfs(self._top).f_fsid}{self._top}"
        name = checksum(where.encode(errors="surrogateescape"))
        return os.path.join(directories().cache, "searched", f"{name:x}")


def _identify_rules() -> tuple[str, ...]:
    here = os.path.dirname(os.path.abspath(__file__))
    found = [os.stat(os.path.join(here, name)) for name in RULES]
    return (__version__, *(f"{one.st_size} {one.st_mtime_ns} {one.st_ino}" for one in found))
