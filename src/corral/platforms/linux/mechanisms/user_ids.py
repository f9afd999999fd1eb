"""The ids of the target: one mapped id, never root outside.

Host uid 0 is exempt from RLIMIT_NPROC and owns the files in /proc/sys, in any namespace, so a run
started by root gets an outside id of its own from a range that no distribution hands out.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.platforms.linux import init
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage

OUTSIDE_ROOT = 0x7000_C000
"""Above systemd's container range (0x6FFFFFFF), below 2**31 for filesystems with signed ids."""
INSIDE_ROOT = 1000


@record
class IdMaps:
    """Inside id -> outside id, of user and group."""

    name = "id_maps"
    uid: int
    gid: int
    outside_uid: int
    outside_gid: int
    drop_groups: bool
    stage: Stage = "after_clone"
    verify = unverified

    def describe(self) -> str:
        groups = "no supplementary groups" if self.drop_groups else "setgroups denied"
        return (
            f"id map: uid {self.uid} inside is {self.outside_uid} outside, "
            f"gid {self.gid} is {self.outside_gid}; {groups}"
        )

    def apply(self, results: Results) -> None:
        write_maps(self, results.get(init.InitProcess).pid)


@record
class SetIds:
    name = "set_ids"
    uid: int
    gid: int
    drop_groups: bool
    stage: Stage = "init"

    def describe(self) -> str:
        return f"become uid {self.uid}, gid {self.gid}"

    def apply(self, _results: Results) -> None:
        if self.drop_groups:
            os.setgroups([])
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)

    def verify(self, _results: Results) -> None:
        if os.getresuid() != (self.uid,) * 3 or os.getresgid() != (self.gid,) * 3:
            raise OSError(0, "the ids read back differ")
        if self.drop_groups and os.getgroups():
            raise OSError(0, "supplementary groups are left")


@record
class NoNestedUserNamespaces:
    """A nested user namespace would bring every capability back."""

    name = "no_nested_user_namespaces"
    stage: Stage = "init"

    def describe(self) -> str:
        return "user.max_user_namespaces = 0 inside"

    def apply(self, _results: Results) -> None:
        _write("/proc/sys/user/max_user_namespaces", "0")

    def verify(self, _results: Results) -> None:
        try:
            abi.unshare(abi.CLONE_NEWUSER)
        except OSError:
            return
        raise OSError(0, "a nested user namespace could be made")


def choose(uid: int, gid: int) -> IdMaps:
    """Keep an ordinary user's ids; give root's target ids that own nothing, if there are any."""
    if uid != 0:
        return IdMaps(uid=uid, gid=gid, outside_uid=uid, outside_gid=gid, drop_groups=False)
    user, group = unused_id("uid_map"), unused_id("gid_map")
    return IdMaps(
        uid=INSIDE_ROOT,
        gid=INSIDE_ROOT,
        outside_uid=user,
        outside_gid=group,
        drop_groups=user != 0 and group != 0,
    )


def unused_id(map_name: str) -> int:
    """Return the outside id for root's target: in a container, the last one that is mapped there.

    A user namespace that maps only its root has no other id; its root is an ordinary user outside.
    """
    with open(f"/proc/self/{map_name}", "rb") as file:
        ranges = [(int(row[0]), int(row[2])) for row in map(bytes.split, file)]
    if any(start <= OUTSIDE_ROOT < start + count for start, count in ranges):
        return OUTSIDE_ROOT
    return max(start + count - 1 for start, count in ranges)


def write_maps(maps: IdMaps, pid: int) -> None:
    """Write them from outside, while the child waits: only there may root map another id."""
    if not maps.drop_groups:
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", f"{maps.uid} {maps.outside_uid} 1")
    _write(f"/proc/{pid}/gid_map", f"{maps.gid} {maps.outside_gid} 1")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
