"""Who the target is: one mapped id, never root outside.

Host uid 0 is exempt from RLIMIT_NPROC and owns the files in /proc/sys, in any namespace, so a run
started by root gets an outside id of its own from a range that no distribution hands out.
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
    from corral.platforms.steps import Scene

OUTSIDE_ROOT = 0x7000_C000
"""Above systemd's container range (0x6FFFFFFF), below 2**31 for filesystems with signed ids."""
INSIDE_ROOT = 1000


@record
class Ids:
    """Inside id -> outside id, of user and group."""

    uid: int
    gid: int
    outside_uid: int
    outside_gid: int
    drop_groups: bool
    place: Place = "beside"

    def describe(self) -> str:
        groups = "no supplementary groups" if self.drop_groups else "setgroups denied"
        return (
            f"id map: uid {self.uid} inside is {self.outside_uid} outside, "
            f"gid {self.gid} is {self.outside_gid}; {groups}"
        )


@record
class Become:
    uid: int
    gid: int
    drop_groups: bool
    place: Place = "init"

    def describe(self) -> str:
        return f"become uid {self.uid}, gid {self.gid}"


@record
class NoNesting:
    """A nested user namespace would bring every capability back."""

    place: Place = "init"

    def describe(self) -> str:
        return "user.max_user_namespaces = 0 inside"


def choose(uid: int, gid: int) -> Ids:
    """An ordinary user stays who it is. Root becomes somebody that owns nothing, if it can."""
    if uid != 0:
        return Ids(uid=uid, gid=gid, outside_uid=uid, outside_gid=gid, drop_groups=False)
    user, group = nobody("uid_map"), nobody("gid_map")
    return Ids(
        uid=INSIDE_ROOT,
        gid=INSIDE_ROOT,
        outside_uid=user,
        outside_gid=group,
        drop_groups=user != 0 and group != 0,
    )


def nobody(map_name: str) -> int:
    """The id for a target of root's: in a container, the last one that is mapped there.

    A user namespace that maps only its root has nobody else; its root is an ordinary user outside.
    """
    with open(f"/proc/self/{map_name}", "rb") as file:
        ranges = [(int(row[0]), int(row[2])) for row in map(bytes.split, file)]
    if any(start <= OUTSIDE_ROOT < start + count for start, count in ranges):
        return OUTSIDE_ROOT
    return max(start + count - 1 for start, count in ranges)


def write_maps(step: Ids, pid: int) -> None:
    """From outside, while the child waits: only there may root map an id that is not its own."""
    if not step.drop_groups:
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", f"{step.uid} {step.outside_uid} 1")
    _write(f"/proc/{pid}/gid_map", f"{step.gid} {step.outside_gid} 1")


def apply(step: Ids | Become | NoNesting, scene: Scene) -> None:
    match step:
        case Become():
            if step.drop_groups:
                os.setgroups([])
            os.setresgid(step.gid, step.gid, step.gid)
            os.setresuid(step.uid, step.uid, step.uid)
        case NoNesting():
            _write("/proc/sys/user/max_user_namespaces", "0")
        case Ids():
            write_maps(step, scene.pid)


def verify(step: Ids | Become | NoNesting, _scene: Scene) -> None:
    if isinstance(step, Become):
        if os.getresuid() != (step.uid,) * 3 or os.getresgid() != (step.gid,) * 3:
            raise OSError(0, "the ids read back differ")
        if step.drop_groups and os.getgroups():
            raise OSError(0, "supplementary groups are left")
    elif isinstance(step, NoNesting):
        try:
            abi.unshare(abi.CLONE_NEWUSER)
        except OSError:
            return
        raise OSError(0, "a nested user namespace could be made")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
