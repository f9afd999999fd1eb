"""The directories of a run: a private one, removed at the end, and one that survives runs."""

from __future__ import annotations

import os
import stat
import sys

from corral.directories import directories
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Stage
    from corral.plan.results import Results
    from corral.programs.model import Program

SUBDIRECTORIES = ("home", "tmp")


@record
class WorkDirectory:
    """A private directory (0700), where no private root can be made. `uid` and `gid` are the
    target's: in a run started by root they are not root's.
    """

    name = "work_directory"
    path: str
    uid: int
    gid: int
    stage: Stage = "supervisor"
    verify = unverified

    @property
    def residue(self) -> str:
        return self.path

    def describe(self) -> str:
        return f"private directory {self.path}, removed at the end"

    def apply(self, results: Results) -> None:
        os.mkdir(self.path, 0o700)  # fails if another process put something there first
        results.add(PrivateDirectory(path=self.path))
        inner = [f"{self.path}/{name}" for name in SUBDIRECTORIES]
        for path in inner:
            os.mkdir(path, 0o700)
        if (self.uid, self.gid) != (os.geteuid(), os.getegid()):
            for path in (*inner, self.path):
                os.chown(path, self.uid, self.gid)


@record
class PrivateDirectory:
    path: str

    def release(self) -> None:
        remove(self.path)


@record
class State:
    """`state = true`: one directory for each server. `inside` is where the target finds it."""

    name = "state_directory"
    path: str
    inside: str
    stage: Stage = "supervisor"
    verify = unverified

    def describe(self) -> str:
        return f"keep {self.inside} in {self.path}"

    def apply(self, _results: Results) -> None:
        os.makedirs(self.path, mode=0o700, exist_ok=True)


def state_path(program: Program) -> str:
    """The same program with the same arguments is the same server."""
    import hashlib

    words = "\0".join((program.real or program.path, *program.argv[1:]))
    digest = hashlib.sha256(os.fsencode(words)).hexdigest()[:32]
    return os.path.join(directories().state, "servers", digest)


def remove(path: str) -> None:
    """With everything below, however deep it lies and whatever its modes."""
    try:
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _empty(top)
        os.rmdir(path)
    except OSError:
        pass  # sweeping tries again what resists
    finally:
        os.close(top)


def _empty(top: int) -> None:
    """Inner directories are moved to the top: a tree can be deeper than any path or stack."""
    while names := os.listdir(top):
        for name in names:
            if not _unlinked(name, top):
                _hollow(name, top)


def _hollow(name: str, top: int) -> None:
    inner = _opened(name, top)
    try:
        for entry in os.listdir(inner):
            if not _unlinked(entry, inner):
                os.close(_opened(entry, inner))  # its `..` changes, which is writing to it
                os.rename(entry, os.urandom(8).hex(), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)


def _opened(name: str, directory: int) -> int:
    """By way of a descriptor: a name could be a link by the time its mode is changed."""
    if sys.platform != "linux":
        # Where there is no O_PATH the system can change a mode without following a link.
        os.chmod(name, 0o700, dir_fd=directory, follow_symlinks=False)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, dir_fd=directory)
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(fd)


def _unlinked(name: str, directory: int) -> bool:
    """Whether it was anything but a directory, and is gone."""
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        return False
    except PermissionError:
        # What POSIX asks for here, and macOS does: a directory is not permitted to be unlinked.
        if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise
        return False
    return True
