"""Hash, check and remove a tree of files, and make it read-only.

An installer may leave anything in a tree, so devices, sockets and links to paths outside of the
tree are refused. A junction on Windows counts as a link. When a tree is made read-only, its files
also lose their set-id bits.
"""

import os
import stat
import sys
from collections.abc import Iterator

from corral.errors import SandboxError
from corral.paths.links import is_directory, is_link
from corral.paths.native import extended_path, is_inside
from corral.safe_text import shown

MAX_ENTRIES = 200_000
MAX_BYTES = 4 << 30
READ_ONLY = 0o555
MAX_PATH_LENGTH = 1000


def path_of(top: str, path: str) -> str:
    """Return the full path of an entry below `top`. On Windows the path is in the form that allows
    more than 260 characters.
    """
    return os.path.join(extended_path(top), *path.split("/"))


def walk(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the path of each entry below `top`, and its lstat. A directory comes before its
    entries, and the entries of one directory are sorted. Links are not followed.
    """
    waiting = [""]
    while waiting:
        here = waiting.pop()
        with os.scandir(path_of(top, here)) as entries:
            names = sorted(entry.name for entry in entries)
        for name in names:
            path = f"{here}/{name}" if here else name
            found = os.lstat(path_of(top, path))
            yield path, found
            if is_directory(found):
                waiting.append(path)


def tree_digest(top: str) -> str:
    from hashlib import sha256

    total = sha256(b"corral tree 1\n")
    rows = sorted((os.fsencode(path), path, found) for path, found in walk(top))
    for name, path, found in rows:
        kind, content = _read_content(path_of(top, path), found)
        for part in (name, kind, content):
            total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()


def _read_content(path: str, found: os.stat_result) -> tuple[bytes, bytes]:
    if is_link(found):
        return b"link", os.fsencode(os.readlink(path))
    if stat.S_ISDIR(found.st_mode):
        return b"directory", b""
    kind = b"program" if found.st_mode & 0o111 else b"file"
    return kind, sha256_of_file(path)


def sha256_of_file(path: str) -> bytes:
    from hashlib import file_digest

    with open(path, "rb") as file:
        return file_digest(file, "sha256").digest()


def check_tree(top: str, *, allowed: tuple[str, ...] = ()) -> None:
    """Refuse devices, named pipes, sockets, links out of the tree, and trees that are too large.
    `allowed` lists the links out of the tree that corral made itself.
    """
    size = 0
    real = os.path.realpath(top)
    for count, (path, found) in enumerate(walk(top)):
        size += found.st_size
        mode = found.st_mode
        if is_link(found) and path not in allowed:
            if not is_inside(os.path.realpath(path_of(top, path)), real):
                raise _refused(path, "is a link to a path outside of the installation")
        elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or is_link(found)):
            raise _refused(path, "is not a file or a directory")
        if count > MAX_ENTRIES or size > MAX_BYTES:
            raise SandboxError(
                f"more than {MAX_ENTRIES} files or {MAX_BYTES >> 30} GiB were installed"
            )


def _refused(path: str, why: str) -> SandboxError:
    return SandboxError(f"the installation is refused: {shown(path, 200)} {why}")


def make_read_only(top: str) -> None:
    """Make a tree read-only. The modes allow all users to read it, but only its owner can reach it,
    because the directory above it is private.
    """
    os.chmod(top, READ_ONLY)
    # `walk` is a generator, so each directory is made readable before `walk` reads it.
    for path, found in walk(top):
        mode = found.st_mode
        if is_directory(found):
            os.chmod(path_of(top, path), READ_ONLY)
        elif stat.S_ISREG(mode):
            os.chmod(path_of(top, path), READ_ONLY if mode & 0o111 else 0o444)


def measure_tree(top: str) -> tuple[int, int]:
    """Return the total size in bytes and the number of regular files in a tree."""
    found = [item for _, item in walk(top) if stat.S_ISREG(item.st_mode)]
    return sum(item.st_size for item in found), len(found)


def remove_tree(top: str) -> None:
    """Remove a tree if it exists, even a read-only one. If it is a link, remove only the link."""
    if os.path.lexists(top) and is_link(os.lstat(top)):
        os.unlink(top)
    elif os.path.isdir(top):
        _remove_directory(top)


if sys.platform != "win32":

    def _remove_directory(top: str) -> None:
        # Use `remove_whole`, because a package's script may have made paths that are too long for
        # system calls, or nested more directories than a process can open at once.
        from corral.platforms.posix.run_directories import remove_whole

        remove_whole(top)

else:

    def _remove_directory(top: str) -> None:
        import shutil

        waiting = [""]
        while waiting:
            here = waiting.pop()
            with os.scandir(path_of(top, here)) as entries:
                names = [entry.name for entry in entries]
            waiting += [path for name in names if (path := _make_removable(top, here, name))]
        shutil.rmtree(extended_path(top))

    def _make_removable(top: str, here: str, name: str) -> str:
        """Make an entry removable. If it is a directory, return its path below `top`, so that the
        caller goes on with the entries inside. Otherwise return "".
        """
        path = f"{here}/{name}" if here else name
        found = os.lstat(path_of(top, path))
        if not is_directory(found):
            if not is_link(found):
                os.chmod(path_of(top, path), 0o600)
            return ""
        os.chmod(path_of(top, path), 0o700)
        if len(path) < MAX_PATH_LENGTH:
            return path
        # The paths below this directory could be too long for any call, so move the directory to a
        # short path directly below `top`.
        fresh = os.urandom(8).hex()
        os.rename(path_of(top, path), path_of(top, fresh))
        return fresh
