"""What runs have put into Windows beyond their own processes, written down before it is made.

One file a run, in a directory of corral's own: the AppContainer profile and every granted root with
the capability that its entries carry. The run keeps its file locked for as long as it lives, and
the kernel lets go of the lock whatever kills it. Hence:

- references are counted by looking: a root's entries are in use while any living run's file, or the
  user's wish to keep them, names its capability;
- a file that nobody holds is a dead run's, and whoever finds it takes away what it names: the next
  run, or `corral sweep`;
- a file is complete or says nothing. It is complete before the first entry is made, so a run that
  died while writing it has made none;
- claims are given up one by one, by a line at the end: a file that is cut there claims too much,
  never too little.

`residue.Claim` is the step that writes it, and `residue` undoes what it names.
"""

from __future__ import annotations

import os
import sys

from corral.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.platforms.windows.files.access_list import Reach


FORMAT = "corral-grants 1"
SUFFIX = ".grants"
KEPT = "kept-"
# Far behind the end: Windows' locks keep others from reading what they cover.
LOCKED_BYTE = 1 << 30
LARGEST = 1 << 20
FLAGS: int = (
    getattr(os, "O_BINARY", 0) | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_CLOEXEC", 0)
)


@record
class Root:
    """`volume` and `file` are of the object that was granted, whatever has its name by now."""

    path: str
    access: Reach
    sid: str
    volume: int
    file: int


@record
class Entry:
    """`profile` is empty for a run whose profile stays, and for what is kept."""

    profile: str
    roots: tuple[Root, ...]


def encode(entry: Entry) -> bytes:
    """Lines of JSON between the name of the format and a digest of all of it."""
    import json

    rows = [[r.path, r.access, r.sid, r.volume, r.file] for r in entry.roots]
    lines = [FORMAT, json.dumps(entry.profile), *map(json.dumps, rows)]
    text = "\n".join(lines).encode() + b"\n"
    return text + _closing(text)


def decode(raw: bytes) -> Entry | None:
    """None for anything but a whole file of ours. Lines behind the digest give claims up."""
    import json

    text, mark, rest = raw.partition(b"\n= ")
    text += b"\n"
    digest = b"= " + rest.partition(b"\n")[0] + b"\n"
    lines = text.decode("utf-8", "replace").split("\n")[:-1]
    if not mark or digest != _closing(text) or b"\n" not in rest or lines[0] != FORMAT:
        return None
    profile, *rows = map(json.loads, lines[1:])
    names = ("path", "access", "sid", "volume", "file")
    roots = [Root(**dict(zip(names, row, strict=True))) for row in rows]
    gone = {line[2:].decode() for line in rest.split(b"\n")[1:-1] if line.startswith(b"- ")}
    return Entry(profile=profile, roots=tuple(root for root in roots if root.sid not in gone))


def is_used(sid: str, entries: Iterable[Entry]) -> bool:
    return any(root.sid == sid for entry in entries for root in entry.roots)


class Journal:
    """A file that this process holds: its own run's, or a dead one's that it cleans up after."""

    def __init__(self, path: str, fd: int, entry: Entry | None) -> None:
        self.path = path
        self.directory = os.path.dirname(path)
        self.entry = entry
        self._fd = fd

    def drop(self, root: Root) -> None:
        """Give up one root. To be called while its mutex is held, so that of two runs which end
        at the same time one sees the other gone.
        """
        if self.entry:
            left = tuple(one for one in self.entry.roots if one.sid != root.sid)
            self.entry = replace(self.entry, roots=left)
            self.append(b"- " + root.sid.encode() + b"\n")

    def others(self) -> list[Entry]:
        """What living runs and the user claim, this file left out."""
        return living(self.directory, without=self.path)

    def end(self) -> None:
        """Everything is undone or kept: the file goes, and with it the claim."""
        if self._fd >= 0:
            # Windows lets nobody delete what is open; for a moment others see an empty file.
            os.truncate(self._fd, 0)
            self.leave()
            _unlink(self.path)

    def leave(self) -> None:
        """Something resisted: the next one tries again."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def append(self, raw: bytes) -> None:
        """Returns once it is on the disk."""
        os.lseek(self._fd, 0, os.SEEK_END)
        while raw:
            raw = raw[os.write(self._fd, raw) :]
        os.fsync(self._fd)


def create(directory: str, run: str, entry: Entry) -> Journal:
    """Returns once the entry is on the disk; only then may anything be made."""
    raw, path = encode(entry), os.path.join(directory, run + SUFFIX)
    if len(raw) > LARGEST:  # nobody would read it to its end, and believe that nothing was made
        raise OSError(0, "more is granted than can be written down", path)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    journal = Journal(path, _locked(path), entry)
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
    """The files of dead runs, held so that only one process cleans up after each."""
    found = []
    for name in _names(directory):
        path = os.path.join(directory, name)
        fd = -1 if name.startswith(KEPT) else _try_lock(path)
        if fd >= 0:
            found.append(Journal(path, fd, _read(path)))
    return found


def keep(directory: str, root: Root) -> None:
    """The user wants this root's entries to stay: remembered until `forget`."""
    path = _kept_path(directory, root.sid)
    with open(f"{path}.{os.getpid()}", "wb") as file:
        file.write(encode(Entry(profile="", roots=(root,))))
        file.flush()
        os.fsync(file.fileno())
    try:
        os.replace(f"{path}.{os.getpid()}", path)
    except PermissionError:
        # Windows: somebody reads the one that is there, so there is one.
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
    import hashlib

    return hashlib.sha256(text).hexdigest()


def _names(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
    except FileNotFoundError:
        return []


def _read(path: str) -> Entry | None:
    try:
        with open(path, "rb") as file:
            return decode(file.read(LARGEST))
    except OSError:
        return None


def _is_free(path: str) -> bool:
    fd = _try_lock(path)
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def _locked(path: str) -> int:
    """A new, empty file of ours; one that a sweeper took in between is made again."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | FLAGS, 0o600)
        if _lock(fd) and _is_same(fd, path):
            os.truncate(fd, 0)
            return fd
        os.close(fd)


def _try_lock(path: str) -> int:
    """The descriptor of a file that no living process holds; -1 for one that is held, or gone."""
    try:
        fd = os.open(path, os.O_RDWR | FLAGS)
    except OSError:
        return -1
    if _lock(fd) and _is_same(fd, path):
        return fd
    os.close(fd)
    return -1


def _lock(fd: int) -> bool:
    """Let go by the kernel when the process ends, however it ends."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(fd, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_same(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # somebody looks at it in this moment: an empty file, that the next sweep removes
