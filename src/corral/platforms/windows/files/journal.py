"""A record on disk of what a run makes in Windows beyond its processes, written before it is made.

Each run has one file: its AppContainer profile and every granted root with the capability that its
entries carry. The run keeps its file locked for as long as it lives, and the kernel unlocks it
whatever kills the run. Hence:

- a root's entries are in use while the file of any living run, or of the user's wish to keep them,
  names its capability;
- a file that is not locked is a dead run's. The next run, or `corral sweep`, removes what it names;
- a file is complete or counts as empty. It is complete before the first entry is made, so a run
  that died while writing it has made none;
- claims are given up one by one, by a line at the end: a file that is cut there claims too much,
  never too little.

`undo.Claim` is the step that writes it, and `undo` removes what it names.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress

from corral.directories import directories
from corral.platforms.run_records import create_locked, lock_dead
from corral.platforms.windows.files.access_list import Reach
from corral.record import astuple, fields, record, replace

FORMAT = "corral-grants 1"
SUFFIX = ".grants"
KEPT = "kept-"
MAX_SIZE = 1 << 20


@record
class Root:
    """`volume` and `file` identify the object that was granted, whatever has its path later."""

    path: str
    access: Reach
    sid: str
    volume: int
    file: int


@record
class Entry:
    """`profile` is empty for a run whose profile stays, and for kept grants."""

    profile: str
    roots: tuple[Root, ...]


def encode(entry: Entry) -> bytes:
    """Return lines of JSON between the name of the format and a digest of all of it."""
    lines = [FORMAT, *map(json.dumps, (entry.profile, *map(astuple, entry.roots)))]
    text = "\n".join(lines).encode() + b"\n"
    return text + _closing(text)


def decode(raw: bytes) -> Entry | None:
    """Return None for anything but a complete file. Lines after the digest give claims up."""
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
    """A file that this process has locked: its own run's, or a dead run's that it cleans up."""

    def __init__(self, path: str, fd: int, entry: Entry | None) -> None:
        self.path = path
        self.directory = os.path.dirname(path)
        self.entry = entry
        self._fd = fd

    def drop(self, root: Root) -> None:
        """Give up one root, under its mutex: of two runs that end, the second sees only itself."""
        if self.entry:
            left = tuple(one for one in self.entry.roots if one.sid != root.sid)
            self.entry = replace(self.entry, roots=left)
            self.append(b"- " + root.sid.encode() + b"\n")

    def others(self) -> list[Entry]:
        """Return what living runs and the user claim, without this file."""
        return living(self.directory, without=self.path)

    def end(self) -> None:
        """Remove the file, and with it the claim: everything is undone or kept."""
        if self._fd >= 0:
            # Windows cannot delete an open file; for a moment other processes see an empty one.
            os.truncate(self._fd, 0)
            self.leave()
            _unlink(self.path)

    def leave(self) -> None:
        """Unlock the file, so that the next run tries again what resisted."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def append(self, raw: bytes) -> None:
        """Return once it is on the disk."""
        os.lseek(self._fd, 0, os.SEEK_END)
        while raw:
            raw = raw[os.write(self._fd, raw) :]
        os.fsync(self._fd)


def default_directory() -> str:
    return os.path.join(directories().state, "grants")


def journal_path(directory: str, run: str) -> str:
    return os.path.join(directory, run + SUFFIX)


def create(directory: str, run: str, entry: Entry) -> Journal:
    """Return once the entry is on the disk; only then may anything be made."""
    raw, path = encode(entry), journal_path(directory, run)
    if len(raw) > MAX_SIZE:  # it would be read in part, and count as empty
        raise OSError(0, "more is granted than can be written down", path)
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
    """Return the files of dead runs, locked so that only one process cleans up after each."""
    found = []
    for name in _names(directory):
        path = os.path.join(directory, name)
        fd = -1 if name.startswith(KEPT) else lock_dead(path)
        if fd >= 0:
            found.append(Journal(path, fd, _read(path)))
    return found


def keep(directory: str, root: Root) -> None:
    """Remember until `forget` that the user wants this root's entries to stay."""
    path = _kept_path(directory, root.sid)
    with open(f"{path}.{os.getpid()}", "wb") as file:
        file.write(encode(Entry(profile="", roots=(root,))))
        file.flush()
        os.fsync(file.fileno())
    try:
        os.replace(f"{path}.{os.getpid()}", path)
    except PermissionError:
        # On Windows another process is reading the file, so it exists already.
        _unlink(f"{path}.{os.getpid()}")


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
    with suppress(OSError):  # another process has it open: the next sweep removes the empty file
        os.unlink(path)
