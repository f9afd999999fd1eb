"""Make idmapped mounts, in which another user's files seem to belong to the target.

On disk the files still belong to their owner. Only the host's root can make such mounts, so the
supervisor makes them before the namespaces exist, and init attaches them.

Some file systems, such as overlayfs, do not support idmapping. On these the target has only the
access that the files' modes give to its user id. The run fails if a grant needs more.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.paths.mounts import find_file_system, read_mounts
from corral.paths.posix import is_below
from corral.platforms.linux import init
from corral.platforms.linux.mechanisms import root_filesystem, user_ids
from corral.platforms.steps import HintedError, unverified
from corral.record import record
from corral.safe_text import printable

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage
    from corral.platforms.linux.mechanisms.root_filesystem import Bind

EINVAL = 22


@record
class IdmappedMounts:
    """Makes a mount for each bind, in which the owner's files belong to the target.

    Each entry of `binds` is (bind, uid, gid) with the ids of the files' owner. `uid` and `gid` are
    the target's ids. All of these are ids on the host, not in the target's namespace.

    `state` is the directory that the target keeps between runs. If this directory's file system
    does not support idmapping, corral makes the target the owner of the directory.
    """

    name = "idmapped_mounts"
    binds: tuple[tuple[Bind, int, int], ...]
    uid: int
    gid: int
    state: str = ""
    stage: Stage = "supervisor"
    verify = unverified

    def describe(self) -> str:
        paths = ", ".join(bind.source for bind, _, _ in self.binds)
        return f"idmapped for the target's id: {paths}"

    def apply(self, results: Results) -> None:
        trees = root_filesystem.DetachedTrees(fds={})
        results.add(trees)
        maps: dict[tuple[int, int], int] = {}
        try:
            for bind, owner, group in self.binds:
                if (owner, group) not in maps:
                    maps[owner, group] = _make_user_namespace(
                        f"{owner} {self.uid} 1", f"{group} {self.gid} 1"
                    )
                source = root_filesystem.open_source(bind)
                try:
                    # If masks cover the mounts below a path, clone the path without these mounts,
                    # because they may be file systems of the kernel, such as proc, which cannot be
                    # idmapped.
                    clone = abi.OPEN_TREE_CLONE if bind.covers else root_filesystem.CLONE_ALL
                    tree = abi.open_tree(source, "", clone | abi.AT_EMPTY_PATH)
                    trees.fds[bind.source] = tree
                    results.get(init.InitDescriptors).fds.append(tree)
                    self._show_to_target(bind, source, tree, maps[owner, group])
                finally:
                    os.close(source)
        finally:
            for fd in maps.values():
                os.close(fd)

    def _show_to_target(self, bind: Bind, source: int, tree: int, userns: int) -> None:
        flags = abi.AT_EMPTY_PATH | abi.AT_RECURSIVE
        try:
            abi.mount_setattr(tree, "", flags, attr_set=abi.MOUNT_ATTR_IDMAP, userns_fd=userns)
        except OSError as error:
            if error.errno == EINVAL and bind.source == self.state:
                os.chown(f"/proc/self/fd/{source}", self.uid, self.gid)
            access = user_ids.WRITE if bind.access == "write" else user_ids.READ
            permits = user_ids.permits(os.fstat(source), access, self.uid, self.gid)
            if error.errno != EINVAL or not permits:
                raise self._explain(error, bind, userns) from error

    def _explain(self, error: OSError, bind: Bind, userns: int) -> HintedError:
        from shlex import quote

        from corral.policy.path_grants import OTHER_USER

        point, kind = _find_unmappable(bind.source, userns)
        place = "" if point == bind.source else f" in {printable(point)}"
        problem = HintedError(
            error.errno,
            f"{kind} cannot map one user's files to another user{place}, and uid {self.uid}, the"
            f" target's user id, is not allowed to {bind.access} them",
            bind.source,
        )
        # An NFS server can deny root access to other users' files. Then chown would not help.
        if not os.access(bind.source, os.R_OK):
            problem.hint = OTHER_USER
            return problem
        problem.hint = (
            f"`chown -R {self.uid}:{self.gid} {printable(quote(bind.source))}` gives them to the"
            " target, or grant a directory on another file system (in a container: a volume)"
        )
        return problem


def _find_unmappable(top: str, userns: int) -> tuple[str, str]:
    """Return a mount at or below `top` that cannot be idmapped, and the type of its file system."""
    points = [point for point in read_mounts() if is_below(point, top)]
    for point in (top, *points):
        fd = abi.open_tree(abi.AT_FDCWD, point, abi.OPEN_TREE_CLONE)
        try:
            abi.mount_setattr(
                fd, "", abi.AT_EMPTY_PATH, attr_set=abi.MOUNT_ATTR_IDMAP, userns_fd=userns
            )
        except OSError:
            return point, find_file_system(point) or "this file system"
        finally:
            os.close(fd)
    return top, "this file system"


def _make_user_namespace(uid_map: str, gid_map: str) -> int:
    """Return a descriptor of a new user namespace that has these maps, but no processes."""
    wait_read, wait_write = os.pipe()
    pid, pidfd = abi.clone(abi.CLONE_NEWUSER)
    if pid == 0:
        os.close(wait_write)
        os.read(wait_read, 1)
        os._exit(0)
    try:
        for name, text in (("uid_map", uid_map), ("gid_map", gid_map)):
            abi.write_file(f"/proc/{pid}/{name}", text)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(wait_write)
        os.close(wait_read)
        os.waitpid(pid, 0)
        os.close(pidfd)
