"""A tree of files as one value: its digest, made read-only, removed.

What an installer left behind is looked at with suspicion: no devices, no sockets, no link that
leads out of the tree; set-id bits go when it is made read-only. On Windows a junction is a link.
"""

from __future__ import annotations

import os
import stat

from corral.errors import SandboxError
from corral.paths.links import is_directory, is_link
from corral.safe_text import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 1 << 20
MOST_ENTRIES = 200_000
MOST_BYTES = 4 << 30
READ_ONLY = 0o555
LONGEST_PATH = 1000


def walk(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """(path below `top`, what lies there), parents first, sorted; links are not followed."""
    waiting = [""]
    while waiting:
        here = waiting.pop()
        with os.scandir(os.path.join(top, here)) as entries:
            names = sorted(entry.name for entry in entries)
        for name in names:
            path = f"{here}/{name}" if here else name
            found = os.lstat(os.path.join(top, path))
            yield path, found
            if is_directory(found):
                waiting.append(path)


def tree_digest(top: str) -> str:
    from hashlib import sha256

    total = sha256(b"corral tree 1\n")
    rows = sorted((os.fsencode(path), found) for path, found in walk(top))
    for path, found in rows:
        kind, content = _content(os.path.join(os.fsencode(top), path), found)
        for part in (path, kind, content):
            total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()


def _content(path: bytes, found: os.stat_result) -> tuple[bytes, bytes]:
    if is_link(found):
        return b"link", os.readlink(path)
    if stat.S_ISDIR(found.st_mode):
        return b"directory", b""
    kind = b"program" if found.st_mode & 0o111 else b"file"
    return kind, file_digest(os.fsdecode(path))


def file_digest(path: str) -> bytes:
    from hashlib import sha256

    total = sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            total.update(chunk)
    return total.digest()


def check(top: str, *, allowed: tuple[str, ...] = ()) -> None:
    """Refuse what a server's files never need; `allowed` are links that corral itself made."""
    size = 0
    real = os.path.realpath(top)
    for count, (path, found) in enumerate(walk(top)):
        size += found.st_size
        mode = found.st_mode
        if is_link(found) and path not in allowed:
            leads = os.path.realpath(os.path.join(top, path))
            if leads != real and not leads.startswith(real + os.sep):
                raise _refused(path, "is a link that leads out")
        elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or is_link(found)):
            raise _refused(path, "is neither a file nor a directory")
        if count > MOST_ENTRIES or size > MOST_BYTES:
            raise SandboxError(
                f"more than {MOST_ENTRIES} files or {MOST_BYTES >> 30} GiB were installed"
            )


def _refused(path: str, why: str) -> SandboxError:
    return SandboxError(f"what was installed is refused: {shown(path, 200)} {why}")


def freeze(top: str) -> None:
    """Read-only for everybody; the directory above keeps others out."""
    # Lazily: a directory is made readable before it is read.
    os.chmod(top, READ_ONLY)
    for path, found in walk(top):
        mode = found.st_mode
        if is_directory(found):
            os.chmod(os.path.join(top, path), READ_ONLY)
        elif stat.S_ISREG(mode):
            os.chmod(os.path.join(top, path), READ_ONLY if mode & 0o111 else 0o444)


def measure(top: str) -> tuple[int, int]:
    """(bytes, files)."""
    found = [item for _, item in walk(top) if stat.S_ISREG(item.st_mode)]
    return sum(item.st_size for item in found), len(found)


def remove_tree(top: str) -> None:
    """Gone, read-only or not; nothing there is fine, a link is only unlinked."""
    import shutil

    if os.path.lexists(top) and is_link(os.lstat(top)):
        os.unlink(top)
        return
    if not os.path.isdir(top):
        return
    os.chmod(top, 0o700)
    waiting = [""]
    while waiting:
        here = waiting.pop()
        with os.scandir(os.path.join(top, here)) as entries:
            names = [entry.name for entry in entries]
        waiting += [path for name in names if (path := _opened(top, here, name))]
    shutil.rmtree(top)


def _opened(top: str, here: str, name: str) -> str:
    """Made removable; the path below `top` of a directory, "" for anything else.

    One far down is moved up: no call takes a path of more than 4096 bytes, but a script that ran
    in there may have made longer ones.
    """
    path = f"{here}/{name}" if here else name
    found = os.lstat(os.path.join(top, path))
    if not is_directory(found):
        if os.name == "nt" and not is_link(found):
            os.chmod(os.path.join(top, path), 0o600)
        return ""
    os.chmod(os.path.join(top, path), 0o700)
    if len(path) < LONGEST_PATH:
        return path
    fresh = os.urandom(8).hex()
    os.rename(os.path.join(top, path), os.path.join(top, fresh))
    return fresh
