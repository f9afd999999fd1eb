"""The directories of a run: a private one, removed at the end, and one that survives runs."""

from __future__ import annotations

import os
import stat
import sys

from corral.directories import directories
from corral.platforms import run_records
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage
    from corral.platforms.run_records import Budget
    from corral.programs.model import Program

TEMPORARY = "/tmp"  # noqa: S108 - a directory in it is made 0700, never reused
SUBDIRECTORIES = ("home", "tmp")


def work_directory(run: str) -> str:
    return f"{os.path.realpath(TEMPORARY)}/corral-{os.geteuid()}-{run}"


def is_work_directory(path: str) -> bool:
    """Return whether this is a path at which corral makes this user's private directories."""
    parent, _, name = path.rpartition("/")
    start = f"corral-{os.geteuid()}-"
    return (
        parent in (TEMPORARY, os.path.realpath(TEMPORARY))
        and name.startswith(start)
        and run_records.is_run_name(name.removeprefix(start))
    )


def inner(path: str) -> tuple[str, ...]:
    """Return the directories in a private directory that are the target's; the top is not."""
    return tuple(f"{path}/{name}" for name in SUBDIRECTORIES)


@record
class WorkDirectory:
    """A private directory, where no private root can be made. Its top stays corral's, and the
    directories in it are the target's: in a run started by root `uid` and `gid` are not root's.
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
        given = (self.uid, self.gid) != (os.geteuid(), os.getegid())
        for path in inner(self.path):
            os.mkdir(path, 0o700)
            if given:
                os.chown(path, self.uid, self.gid)
        if given:
            os.chown(self.path, -1, self.gid)
            os.chmod(self.path, 0o710)  # noqa: S103 - the target has to get through


@record
class PrivateDirectory:
    path: str

    def release(self) -> None:
        remove(self.path, run_records.Budget())


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


def remove(path: str, budget: Budget) -> None:
    """Remove a private directory with everything below, however deep and whatever its modes.

    A link or another user's directory stays as it is.
    """
    try:
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if os.fstat(top).st_uid == os.geteuid():
            _empty(top, budget)
            os.rmdir(path)
    except OSError:
        pass  # the next sweep tries again
    finally:
        os.close(top)


def _empty(top: int, budget: Budget) -> None:
    """Move inner directories to the top, because a tree can be deeper than any path or stack."""
    while names := _some_names(top):
        for name in names:
            if not _unlink(name, top, budget):
                _remove_inner(name, top, budget)


def _some_names(directory: int) -> list[str]:
    """Return up to a thousand names: a directory can have more than fit into memory."""
    with os.scandir(directory) as entries:
        return [entry.name for entry, _ in zip(entries, range(1000), strict=False)]


def _remove_inner(name: str, top: int, budget: Budget) -> None:
    directory = _open_directory(name, top)
    try:
        while names := _some_names(directory):
            for entry in names:
                if not _unlink(entry, directory, budget):
                    _refuse_foreign(entry, directory)
                    os.close(_open_directory(entry, directory))  # moving it writes to its `..`
                    os.rename(entry, os.urandom(8).hex(), src_dir_fd=directory, dst_dir_fd=top)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=top)


def _refuse_foreign(name: str, directory: int) -> None:
    """Raise for another user's directory: a target of root may have moved root's here."""
    owner = os.stat(name, dir_fd=directory, follow_symlinks=False).st_uid
    if owner != os.fstat(directory).st_uid:
        raise OSError(1, "is another user's directory", name)


def _open_directory(name: str, directory: int) -> int:
    """Make a directory accessible and open it. Its mode is changed through a descriptor, because
    its name could be a link by then.
    """
    if sys.platform != "linux":
        # There is no O_PATH here, but a mode can be changed without following a link.
        os.chmod(name, 0o700, dir_fd=directory, follow_symlinks=False)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, dir_fd=directory)
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        if _mount_id(fd) != _mount_id(directory):
            raise OSError(18, "is a mount, which the target may have moved here", name)
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(fd)


def _mount_id(fd: int) -> str:
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        fields = [line.split() for line in file]
    return next(words[1].decode() for words in fields if words[0] == b"mnt_id:")


def _unlink(name: str, directory: int, budget: Budget) -> bool:
    """Remove a file; return False for a directory, which stays."""
    budget.spend()
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        return False
    except PermissionError:
        # For a directory POSIX asks for this error, and macOS raises it.
        if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise
        return False
    return True
