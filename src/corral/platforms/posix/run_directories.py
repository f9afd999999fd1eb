"""Manage a run's private directory, and the directory that a server keeps between runs."""

from __future__ import annotations

import errno
import os
import stat
import sys

from corral.abi.private_directory import lock, make_private_directory
from corral.abi.whole_file import replace_file
from corral.directories import WORK_DIRECTORIES, directories, refuse_shared
from corral.platforms import run_records
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.plan.model import Results, Stage
    from corral.platforms.run_records import Budget
    from corral.programs.model import Program

TEMPORARY, PREFIX = WORK_DIRECTORIES.rsplit("/", 1)
MAXPATHLEN = 1024
SUBDIRECTORIES = ("home", "tmp")
TAKEN = frozenset((errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.EACCES))
"""Errors which mean that a name is taken, or that a parent is a file, a symlink, or a directory
that the target has made inaccessible.
"""
SET_ASIDE = ".before-grant"
DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


def work_directory(run: str) -> str:
    return f"{os.path.realpath(TEMPORARY)}/{PREFIX}{os.geteuid()}-{run}"


def is_work_directory(path: str) -> bool:
    """Return whether `path` could be the private directory of one of this user's runs."""
    parent, _, name = path.rpartition("/")
    start = f"{PREFIX}{os.geteuid()}-"
    return (
        parent in (TEMPORARY, os.path.realpath(TEMPORARY))
        and name.startswith(start)
        and run_records.is_run_name(name.removeprefix(start))
    )


def inner(path: str) -> tuple[str, ...]:
    """Return the target's directories inside the private directory `path`, which itself belongs to
    corral.
    """
    return tuple(f"{path}/{name}" for name in SUBDIRECTORIES)


@record
class WorkDirectory:
    """Makes a private directory on hosts where the target cannot have a root directory of its own.

    The directory itself belongs to corral. The directories in it, such as the target's home, belong
    to the target's `uid` and `gid`. `links` lists the symlinks to make, as pairs (name in the home,
    granted path), so that the target finds its grants below its home.
    """

    name = "work_directory"
    path: str
    uid: int
    gid: int
    links: tuple[tuple[str, str], ...] = ()
    stage: Stage = "supervisor"
    verify = unverified

    @property
    def residue(self) -> str:
        return self.path

    def describe(self) -> str:
        return f"private directory {self.path}, removed at the end"

    def apply(self, results: Results) -> None:
        os.mkdir(self.path, 0o700)  # fails if another process has taken the name
        results.add(PrivateDirectory(path=self.path))
        given = (self.uid, self.gid) != (os.geteuid(), os.getegid())
        for path in inner(self.path):
            os.mkdir(path, 0o700)
            if given:
                os.chown(path, self.uid, self.gid)
        make_links(f"{self.path}/home", self.links)
        if given:
            os.chown(self.path, -1, self.gid)
            os.chmod(self.path, 0o710)  # noqa: S103 - the target passes through


@record
class PrivateDirectory:
    path: str

    def release(self) -> None:
        remove(self.path, run_records.Budget())


@record
class State:
    """Makes the directory that a server keeps between runs (`state = true`).

    `inside` is the path at which the target sees this directory. `links` lists the symlinks to
    make, as pairs (name in the home, granted path). Symlinks from earlier runs stay, but the target
    cannot use them without a grant for their path. `owner` is the target's uid and gid if root runs
    corral and the target has another user id, otherwise None.
    """

    name = "state_directory"
    path: str
    inside: str
    server: tuple[str, ...] = ()
    start_directory: str = ""
    links: tuple[tuple[str, str], ...] = ()
    owner: tuple[int, int] | None = None
    stage: Stage = "supervisor"
    verify = unverified

    def describe(self) -> str:
        return f"keep {self.inside} in {self.path}"

    def apply(self, _results: Results) -> None:
        if self.owner is not None:
            self._make_for_target(*self.owner)
        elif not os.path.isdir(self.path):
            self._make()
        elif os.stat(self.path).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            # The server has removed its own access to its home, so it could not start there again.
            # Look at the mode for this, because `os.access` always succeeds for root.
            reopen(self.path)
        if self.links:
            make_links(self.path, self.links)

    def _make_for_target(self, uid: int, gid: int) -> None:
        """Make or check the target's home if root runs corral and the target has another user id.
        Raise OSError if the home belongs neither to root nor to the target's user.

        The directory above the home belongs to root, and only the target's group can search it. So
        only root can list or replace the homes. Other users cannot reach a home even if its server
        lets everyone read it.
        """
        above = os.path.dirname(self.path)
        make_private_directory(above)
        refuse_shared(above, os.lstat(above))
        os.chown(above, -1, gid, follow_symlinks=False)
        os.chmod(above, 0o710)  # noqa: S103 - targets pass through
        held = os.open(above, DIRECTORY)
        try:
            # Only one run at a time may make the home. Otherwise a second run could try to make it
            # after the first has given it to the target, and `_make` refuses a home that belongs to
            # another user. A target cannot take this lock, because it cannot open `above`.
            lock(held, wait=True)
            if not os.path.lexists(self.path):
                self._make()
            self._give(uid, gid)
        finally:
            os.close(held)

    def _give(self, uid: int, gid: int) -> None:
        top = os.open(self.path, DIRECTORY)
        try:
            found = os.fstat(top)
            if found.st_uid not in {os.geteuid(), uid}:
                raise OSError(
                    errno.EPERM, f"it belongs to user {found.st_uid}, not to {uid}", self.path
                )
            if (found.st_uid, found.st_gid) != (uid, gid):
                os.fchown(top, uid, gid)
            os.fchmod(top, 0o700)  # a server may have removed its own access to its home
        finally:
            os.close(top)

    def _make(self) -> None:
        make_private_directory(self.path)
        from corral.policy.server_identity import identify_command

        server = identify_command(self.server, self.start_directory)
        name = os.fsencode("\0".join((server.digest + server.directory, *server.command)))
        try:
            replace_file(self.path + run_records.NAME_OF_STATE, name)
        except OSError:
            # Without the file, corral cannot tell to which server the home belongs.
            os.rmdir(self.path)
            raise


def make_links(top: str, links: Iterable[tuple[str, str]]) -> None:
    """Make symlinks to the grants below the home `top`.

    Targets may have written to this home. Do not follow symlinks that a target has put into the
    path of a new symlink.

    Before the user granted a path, the server may have written its own file where the symlink has
    to be. Add the suffix SET_ASIDE to the name of that file. Otherwise the server would go on using
    it, and the grant would have no effect.

    Skip a symlink if its name is still taken, or if the target has made its directory inaccessible.
    Raise OSError for any other failure, such as a full disk, because the target would not find the
    grant below its home.
    """
    for name, target in links:
        try:
            _make_link(top, name, target)
        except OSError as error:
            if error.errno not in TAKEN:
                raise OSError(error.errno, error.strerror, f"{top}/{name}") from error


def _make_link(top: str, name: str, target: str) -> None:
    *parents, last = name.split("/")
    opened = [os.open(top, DIRECTORY)]
    try:
        for parent in parents:
            _make_alike(parent, opened[-1])
            opened.append(os.open(parent, DIRECTORY, dir_fd=opened[-1]))
        try:
            os.symlink(target, last, dir_fd=opened[-1])
        except FileExistsError:
            if not _is_link(last, target, opened[-1]):
                _set_aside(last, opened[-1])
                os.symlink(target, last, dir_fd=opened[-1])
    finally:
        for fd in opened:
            os.close(fd)


def _is_link(name: str, target: str, above: int) -> bool:
    try:
        return os.readlink(name, dir_fd=above) == target
    except OSError:
        return False  # the name belongs to a file or a directory, not to a symlink


def _set_aside(name: str, above: int) -> None:
    """Add the suffix SET_ASIDE to a file's name. Raise FileExistsError if that is not possible."""
    try:
        _rename_to_unused(name, name + SET_ASIDE, above)
    except OSError as error:
        if error.errno not in TAKEN | {errno.ENAMETOOLONG, errno.ENOENT}:
            raise  # another failure, such as a full disk
        raise FileExistsError(errno.EEXIST, error.strerror, name) from error


def _rename_to_unused(name: str, new: str, above: int) -> None:
    """Rename a file. Raise FileExistsError if the new name is taken.

    Never replace a file, not even one that another run makes at the same moment.
    """
    if sys.platform == "linux":
        from corral.abi import linux

        try:
            linux.renameat2(above, name, above, new, linux.RENAME_NOREPLACE)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOSYS}:
                raise
        else:
            return
    _rename_to_reserved(name, new, above)


def _rename_to_reserved(name: str, new: str, above: int) -> None:
    """Do the work of `_rename_to_unused` on systems and file systems without renameat2.

    `rename` would replace an existing file. So first make an empty file or directory with the new
    name, which fails if another run has already made it. If this process is killed before the
    rename, the empty file or directory stays.
    """
    is_directory = stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    if is_directory:
        os.mkdir(new, 0o700, dir_fd=above)
    else:
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=above))
    try:
        os.rename(name, new, src_dir_fd=above, dst_dir_fd=above)
    except OSError:
        # Remove the reservation, because otherwise the new name would be taken in every later run.
        (os.rmdir if is_directory else os.unlink)(new, dir_fd=above)
        raise


def _make_alike(name: str, above: int) -> None:
    """Make a directory, if its name is free, and give it to the owner of its parent, so that this
    user can remove its files.

    Before the owner is changed, another run's target may replace the directory with a hard link to
    one of root's files, to become the owner of this file. So open the directory with a flag that
    refuses files, and change the owner of the opened directory.
    """
    try:
        os.mkdir(name, 0o755, dir_fd=above)
    except FileExistsError:
        return
    owner = os.fstat(above)
    if owner.st_uid != os.geteuid():
        made = os.open(name, DIRECTORY, dir_fd=above)
        try:
            os.fchown(made, owner.st_uid, owner.st_gid)
        finally:
            os.close(made)


def state_path(program: Program) -> str:
    """Return the path of a server's state directory, the home that it keeps between runs.

    Two commands count as the same server if they have the same `home_words`. A file next to the
    directory, whose name ends in NAME_OF_STATE, contains the digest of the command as typed, the
    directory to which the server belongs, and the command with its secrets masked.
    """
    from corral.formats.light import sha256
    from corral.programs.identity import home_words

    digest = sha256(os.fsencode("\0".join(home_words(program)))).hexdigest()[:32]
    return os.path.join(directories().state, "servers", digest)


def remove(path: str, budget: Budget, *, owner: int = -1) -> None:
    """Remove a private directory, or a home that a server keeps, with everything below it, whatever
    its depth and modes.

    Do nothing if `path` is a symlink, or if its owner is neither this user nor `owner`. After an
    error, or when `budget` allows no more files, the remaining files stay. In a home that a server
    keeps, the removal also stops at a directory that does not belong to the home's owner.
    """
    try:
        top = _open_top(path)
    except OSError:
        return
    try:
        found = os.fstat(top).st_uid
        if found in {os.geteuid(), owner}:
            os.fchmod(top, 0o700)
            _empty(top, budget, None if is_work_directory(path) else found)
            os.rmdir(path)
    except OSError:
        pass  # the next sweep of dead runs, or the next call, tries again
    finally:
        os.close(top)


def remove_whole(path: str) -> None:
    """Remove a directory with everything below it, whatever its depth and modes. Raise OSError if
    any part of it cannot be removed.

    Unlike `remove`, do not check who owns the directories in it. Another process could move another
    user's directory into it, which would then be removed too. So the caller must ensure that no
    other process changes the directory.
    """
    top = _open_top(path)
    try:
        os.fchmod(top, 0o700)
        _empty(top, run_records.Budget(), None, mixed=True)
    finally:
        os.close(top)
    os.rmdir(path)


def _open_top(path: str) -> int:
    """Open a directory. If this is denied, first restore the permissions of the directory.

    This is necessary if a target has removed its own permissions for the home that it keeps.
    """
    try:
        return os.open(path, DIRECTORY)
    except PermissionError:
        above, name = os.path.split(path)
        parent = os.open(above, DIRECTORY)
        try:
            return _open_directory(name, parent, os.geteuid())
        finally:
            os.close(parent)


def reopen(path: str) -> None:
    """Restore the permissions of a home that is kept between runs. The target may have removed them
    in an earlier run.
    """
    top = _open_top(path)
    try:
        if os.fstat(top).st_uid == os.geteuid():
            os.fchmod(top, 0o700)
    finally:
        os.close(top)


def _empty(top: int, budget: Budget, owner: int | None, *, mixed: bool = False) -> None:
    """Empty a directory. Move deeper directories up into `top`, because a tree can be too deep for
    a path or for Python's stack.

    Raise OSError if a directory in `top` does not belong to `owner` (None allows any owner), or if
    a deeper directory and its parent have different owners (unless `mixed`).
    """
    while names := _some_names(top):
        for name in names:
            if not _unlink(name, top, budget):
                _remove_inner(name, top, budget, owner, mixed=mixed)


def _some_names(directory: int) -> list[str]:
    """Return up to a thousand names in a directory, because all of them may not fit into memory."""
    with os.scandir(directory) as entries:
        return [entry.name for entry, _ in zip(entries, range(1000), strict=False)]


def _remove_inner(name: str, top: int, budget: Budget, owner: int | None, *, mixed: bool) -> None:
    directory = _open_directory(name, top, owner)
    try:
        same_owner = None if mixed else os.fstat(directory).st_uid
        while names := _some_names(directory):
            for entry in names:
                if not _unlink(entry, directory, budget):
                    # Moving a directory changes the entry `..` in it, so it has to be writable.
                    # `_open_directory` makes it so.
                    os.close(_open_directory(entry, directory, same_owner))
                    os.rename(entry, os.urandom(8).hex(), src_dir_fd=directory, dst_dir_fd=top)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=top)


def _refuse_foreign(name: str, found: int, owner: int | None) -> None:
    """Raise OSError unless a directory's owner `found` is `owner`. If `owner` is None, accept any.

    A target that runs as root may have moved another user's directory into its home, so that corral
    deletes the files in it.
    """
    if owner not in {None, found}:
        raise OSError(1, "the directory belongs to another user", name)


def _open_directory(name: str, directory: int, owner: int | None) -> int:
    """Make a directory accessible and open it. Raise OSError if the directory does not belong to
    `owner`. If `owner` is None, accept any user.

    On Linux, check the owner and change the mode through one descriptor, because the target may
    replace the directory between the two calls.
    """
    if sys.platform != "linux":
        # Other systems have no O_PATH. But their chmod can refuse to follow a symlink, so a target
        # cannot direct it to another file.
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        _refuse_foreign(name, found.st_uid, owner)
        _clear_flags(name, directory)
        os.chmod(name, 0o700, dir_fd=directory, follow_symlinks=False)
        return os.open(name, DIRECTORY, dir_fd=directory)
    fd = os.open(name, DIRECTORY | os.O_PATH, dir_fd=directory)
    try:
        _refuse_foreign(name, os.fstat(fd).st_uid, owner)
        if _mount_id(fd) != _mount_id(directory):
            raise OSError(18, "it is a mount, which the target may have moved here", name)
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(fd)


def _mount_id(fd: int) -> str:
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        fields = [line.split() for line in file]
    return next(words[1].decode() for words in fields if words[0] == b"mnt_id:")


def _unlink(name: str, directory: int, budget: Budget) -> bool:
    """Remove a file and return True. If the name is a directory, keep it and return False."""
    budget.spend()
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        return False
    except PermissionError:
        # POSIX requires unlink to fail with EPERM for a directory, and macOS complies.
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            return False
        _clear_flags(name, directory)
        os.unlink(name, dir_fd=directory)
    return True


def _clear_flags(name: str, directory: int) -> None:
    """Clear a file's flags on macOS, because a flag such as uchg keeps even the owner from removing
    the file.
    """
    if sys.platform == "darwin":
        import fcntl

        path = fcntl.fcntl(directory, fcntl.F_GETPATH, bytes(MAXPATHLEN)).partition(b"\0")[0]
        os.lchflags(f"{os.fsdecode(path)}/{name}", 0)
