"""Idmapped mounts: what root owns outside belongs to the target inside, and to root again on disk.

Only the host's root may make them, so the supervisor does, before the namespaces exist; init then
attaches the detached mounts. A filesystem that cannot do it fails the run.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.platforms.linux import init
from corral.platforms.linux.mechanisms import root_filesystem
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage


@record
class IdmappedMounts:
    """(bind, its owner on disk: uid, gid), all shown as `uid` and `gid`, ids of the host."""

    name = "idmapped_mounts"
    binds: tuple[tuple[root_filesystem.Bind, int, int], ...]
    uid: int
    gid: int
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
                    # A recursive idmap fails on the kernel's own file systems.
                    clone = abi.OPEN_TREE_CLONE if bind.covers else root_filesystem.CLONE_ALL
                    tree = abi.open_tree(source, "", clone | abi.AT_EMPTY_PATH)
                finally:
                    os.close(source)
                trees.fds[bind.source] = tree
                results.get(init.InitDescriptors).fds.append(tree)
                _set_idmap(tree, maps[owner, group], bind.source)
        finally:
            for fd in maps.values():
                os.close(fd)


def _set_idmap(tree: int, userns_fd: int, path: str) -> None:
    flags = abi.AT_EMPTY_PATH | abi.AT_RECURSIVE
    try:
        abi.mount_setattr(tree, "", flags, attr_set=abi.MOUNT_ATTR_IDMAP, userns_fd=userns_fd)
    except OSError as error:
        text = f"this filesystem cannot show root's files to the target: {error.strerror}"
        raise OSError(error.errno, text, path) from error


def _make_user_namespace(uid_map: str, gid_map: str) -> int:
    """Return a descriptor of a user namespace with these maps; its process ends once it is open."""
    wait_read, wait_write = os.pipe()
    pid, pidfd = abi.clone(abi.CLONE_NEWUSER)
    if pid == 0:
        os.close(wait_write)
        os.read(wait_read, 1)
        os._exit(0)
    try:
        for name, text in (("uid_map", uid_map), ("gid_map", gid_map)):
            with open(f"/proc/{pid}/{name}", "wb", buffering=0) as file:
                file.write(text.encode())
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(wait_write)
        os.close(wait_read)
        os.waitpid(pid, 0)
        os.close(pidfd)
