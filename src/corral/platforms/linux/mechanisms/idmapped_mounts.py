"""Idmapped mounts: what root owns outside belongs to the target inside, and to root again on disk.

Only the host's root may make them, so the supervisor does, before the namespaces exist; the
detached mounts are then attached by init. A filesystem that cannot do it fails the run.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Place
    from corral.platforms.linux.mechanisms.root_filesystem import Bind
    from corral.platforms.steps import Scene


@record
class Idmap:
    """(bind, who owns it on disk: uid, gid), all shown as `uid` and `gid`, ids of the host."""

    binds: tuple[tuple[Bind, int, int], ...]
    uid: int
    gid: int
    place: Place = "supervisor"

    def describe(self) -> str:
        paths = ", ".join(bind.source for bind, _, _ in self.binds)
        return f"idmapped for the target's id: {paths}"


def apply(step: Idmap, scene: Scene) -> None:
    from corral.platforms.linux.mechanisms.root_filesystem import CLONE_ALL, open_source

    maps: dict[tuple[int, int], int] = {}
    try:
        for bind, owner, group in step.binds:
            if (owner, group) not in maps:
                maps[owner, group] = _user_namespace(
                    f"{owner} {step.uid} 1", f"{group} {step.gid} 1"
                )
            source = open_source(bind)
            try:
                tree = abi.open_tree(source, "", CLONE_ALL | abi.AT_EMPTY_PATH)
            finally:
                os.close(source)
            scene.trees[bind.source] = tree
            _show(tree, maps[owner, group], bind.source)
    finally:
        for fd in maps.values():
            os.close(fd)


def _show(tree: int, userns_fd: int, path: str) -> None:
    flags = abi.AT_EMPTY_PATH | abi.AT_RECURSIVE
    try:
        abi.mount_setattr(tree, "", flags, attr_set=abi.MOUNT_ATTR_IDMAP, userns_fd=userns_fd)
    except OSError as error:
        text = f"this filesystem cannot show root's files to the target: {error.strerror}"
        raise OSError(error.errno, text, path) from error


def _user_namespace(uid_map: str, gid_map: str) -> int:
    """A user namespace that exists only to be named: its process ends once it is held open."""
    hold_read, hold_write = os.pipe()
    pid, pidfd = abi.clone(abi.CLONE_NEWUSER)
    if pid == 0:
        os.close(hold_write)
        os.read(hold_read, 1)
        os._exit(0)
    try:
        for name, text in (("uid_map", uid_map), ("gid_map", gid_map)):
            with open(f"/proc/{pid}/{name}", "wb", buffering=0) as file:
                file.write(text.encode())
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(hold_write)
        os.close(hold_read)
        os.waitpid(pid, 0)
        os.close(pidfd)
