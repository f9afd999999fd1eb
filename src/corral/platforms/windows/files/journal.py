"""Record on disk what a run changes outside its processes, before the run changes it.

A run creates an AppContainer profile, and adds entries to the access lists of the granted trees.
Such an entry names a capability, which the target has. Each run has one journal file. It lists the
profile, and the root of every granted tree with the capability in the tree's entries. The run keeps
the file locked, and the kernel unlocks it however the run ends. The rules are:

- The entries of a tree are removed only when they are no longer in use. They are in use while the
  journal file of a live run lists their capability. They are also in use while a file whose name
  begins with KEPT lists it, because the user wants to keep them.
- A journal file that is not locked belongs to a dead run. The next run, or `corral clean`, undoes
  the changes that it lists.
- An incomplete file counts as empty, because a run completes its file before it adds the first
  access list entry.
- A run appends a line for each root that it no longer uses. If such lines are lost, the file lists
  too many roots, but never too few.

`undo.Claim` is the step that writes the file, and `undo` undoes the changes in it.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress

from corral.abi.private_directory import create_locked, lock_dead
from corral.abi.whole_file import discard_leftovers, replace_file
from corral.directories import directories
from corral.platforms.windows.files.access_list import Reach
from corral.record import astuple, fields, record, replace

FORMAT = "corral-grants 1"
SUFFIX = ".grants"
KEPT = "kept-"
MAX_SIZE = 1 << 20


@record
class Root:
    """The root of a granted tree.

    `sid` is the capability in the tree's access list entries. `volume` and `file` are the ids that
    identify the root even after it has been moved.
    """

    path: str
    access: Reach
    sid: str
    volume: int
    file: int


@record
class Entry:
    """The content of a journal file.

    `profile` is the AppContainer profile to delete after the run. It is empty if the run keeps its
    profile, or if the file does not belong to a run, but records a grant that the user keeps.
    """

    profile: str
    roots: tuple[Root, ...]


def encode(entry: Entry) -> bytes:
    """Return an entry as the bytes of a file: the format's name, JSON lines, and their digest."""
    lines = [FORMAT, *map(json.dumps, (entry.profile, *map(astuple, entry.roots)))]
    text = "\n".join(lines).encode() + b"\n"
    return text + _closing(text)


def decode(raw: bytes) -> Entry | None:
    """Parse the content of a journal file. Return None if the file is incomplete.

    Lines after the digest name roots that the run no longer uses. Leave out these roots.
    """
    text, mark, rest = raw.partition(b"\n= ")
    text += b"\n"
    digest = b"= " + rest.partition(b"\n")[0] + b"\n"
    lines = text.decode("utf-8", "replace").split("\n")[:-1]
    if not mark or digest != _closing(text) or b"\n" not in rest or lines[0] != FORMAT:
        return None
    profile, *rows = map(json.loads, lines[1:])
    roots = [Root(**dict(zip(fields(Root), row, strict=True))) for row in rows]
    gone = {line[2:].decode() for line in rest.split(b"\n")[1:-1] if line.startswith(b"- ")}
    return Entry(profile=profile, roots=tuple(root for root in roots if root.sid not in gone))


def is_used(sid: str, entries: Iterable[Entry]) -> bool:
    return any(root.sid == sid for entry in entries for root in entry.roots)


class Journal:
    """A journal file that this process has locked, for its own run or to clean up a dead run."""

    def __init__(self, path: str, fd: int, entry: Entry | None) -> None:
        self.path = path
        self.directory = os.path.dirname(path)
        self.entry = entry
        self._fd = fd

    def drop(self, root: Root) -> None:
        """Record that this run no longer uses a root.

        The caller must lock the root's mutex, look for other runs that use the root, and call this
        function before it unlocks the mutex. Otherwise two runs that end at the same time could
        each rely on the other to remove the root's access list entries.
        """
        if self.entry:
            left = tuple(one for one in self.entry.roots if one.sid != root.sid)
            self.entry = replace(self.entry, roots=left)
            self.append(b"- " + root.sid.encode() + b"\n")

    def others(self) -> list[Entry]:
        return living(self.directory, without=self.path)

    def end(self) -> None:
        """Remove the file. The caller must first undo or keep every change that the file lists."""
        if self._fd >= 0:
            # Windows cannot delete an open file, so the file is closed, and thereby unlocked, a
            # moment before it is removed. At this moment another process could take it for the file
            # of a dead run. So empty the file first, and that process finds no changes to undo.
            os.truncate(self._fd, 0)
            self.leave()
            _unlink(self.path)

    def leave(self) -> None:
        """Unlock the file but keep it, so that the next run tries again to undo the changes."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def append(self, raw: bytes) -> None:
        """Append to the file, and return when the data is on the disk."""
        os.lseek(self._fd, 0, os.SEEK_END)
        while raw:
            raw = raw[os.write(self._fd, raw) :]
        os.fsync(self._fd)


def default_directory() -> str:
    return os.path.join(directories().state, "grants")


def journal_path(directory: str, run: str) -> str:
    return os.path.join(directory, run + SUFFIX)


def create(directory: str, run: str, entry: Entry) -> Journal:
    """Write a run's journal. The run may make changes only after this function returns."""
    raw, path = encode(entry), journal_path(directory, run)
    if len(raw) > MAX_SIZE:  # `_read` would read only a part of a longer file
        raise OSError(0, "the run has too many grants for its journal file", path)
    fd = create_locked(path)
    os.truncate(fd, 0)
    journal = Journal(path, fd, entry)
    journal.append(raw)
    return journal


def living(directory: str, *, without: str = "") -> list[Entry]:
    found = []
    for name in _names(directory):
        path = os.path.join(directory, name)
        if path != without and (name.startswith(KEPT) or not _is_free(path)):
            entry = _read(path)
            found += [entry] if entry else []
    return found


def dead(directory: str) -> list[Journal]:
    """Lock and return the journals of dead runs.

    The lock ensures that only one process cleans up after each run. Also remove the incomplete
    files of processes that died in `keep`.
    """
    discard_leftovers(directory)
    found = []
    for name in _names(directory):
        path = os.path.join(directory, name)
        fd = -1 if name.startswith(KEPT) else lock_dead(path)
        if fd >= 0:
            found.append(Journal(path, fd, _read(path)))
    return found


def keep(directory: str, root: Root) -> None:
    """Record that the user wants to keep the access list entries of this tree after the run."""
    path = _kept_path(directory, root.sid)
    try:
        replace_file(path, encode(Entry(profile="", roots=(root,))))
    except PermissionError:
        # Windows does not replace a file while another process reads it. But then the file exists,
        # and already has this content, so nothing is lost.
        if not os.path.exists(path):
            raise


def forget(directory: str, root: Root) -> None:
    _unlink(_kept_path(directory, root.sid))


def kept(directory: str) -> tuple[Root, ...]:
    names = [name for name in _names(directory) if name.startswith(KEPT)]
    entries = [_read(os.path.join(directory, name)) for name in names]
    return tuple(root for entry in entries if entry for root in entry.roots)


def _kept_path(directory: str, sid: str) -> str:
    return os.path.join(directory, KEPT + _digest(sid.encode())[:32] + SUFFIX)


def _closing(text: bytes) -> bytes:
    return f"= {_digest(text)}\n".encode()


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _names(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
    except FileNotFoundError:
        return []


def _read(path: str) -> Entry | None:
    try:
        with open(path, "rb") as file:
            return decode(file.read(MAX_SIZE))
    except OSError:
        return None


def _is_free(path: str) -> bool:
    fd = lock_dead(path)
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def _unlink(path: str) -> None:
    with suppress(OSError):  # if another process has the file open, the next sweep removes it
        os.unlink(path)
