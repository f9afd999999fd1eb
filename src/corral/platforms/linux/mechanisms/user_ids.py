"""Choose and set the target's user id and group id.

The sandbox's user namespace maps one user id and one group id, and never the host's root. In any
namespace, the host's uid 0 is exempt from RLIMIT_NPROC and owns the files in /proc/sys. So if root
starts a run, the target gets another id on the host, from a range that no distribution uses.
"""

from __future__ import annotations

import os
import stat
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
"""The id that the target has on the host if root starts corral. It is above systemd's container
range (0x6FFFFFFF), and below 2**31, because some file systems use signed ids.
"""
INSIDE_ROOT = 1000
READ, WRITE, SEARCH = 4, 6, 1
"""The bits of a file's mode that each kind of access needs."""
NEEDED = (1 << 0) | (1 << 1) | (1 << 3) | (1 << 5) | (1 << 6) | (1 << 7) | (1 << 8)
"""CAP_CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID, SETPCAP: root needs these to start a
target with another id, to end it and to remove its files. Docker's root has them all.
"""


@record
class IdMaps:
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
            ids = f"uid {self.uid} and gid {self.gid}"
            raise OSError(0, f"setting {ids} had no effect")
        if self.drop_groups and os.getgroups():
            raise OSError(0, "the process still has supplementary groups")


@record
class NoNestedUserNamespaces:
    """Forbids nested user namespaces, because they would give the target all capabilities."""

    name = "no_nested_user_namespaces"
    stage: Stage = "init"

    def describe(self) -> str:
        return "user.max_user_namespaces = 0 inside"

    def apply(self, _results: Results) -> None:
        abi.write_file("/proc/sys/user/max_user_namespaces", "0")

    def verify(self, _results: Results) -> None:
        try:
            abi.unshare(abi.CLONE_NEWUSER)
        except OSError:
            return
        raise OSError(0, "the kernel did not deny a nested user namespace")


def choose(uid: int, gid: int) -> IdMaps:
    """Return the ids of the target, if corral has the ids `uid` and `gid`.

    - If an ordinary user runs corral, the target has this user's ids.
    - If root runs corral, the target gets ids that own no files, as far as corral's user namespace
      has such ids (`unused_id`).
    - If root runs corral without the capabilities in NEEDED, which some containers drop, the target
      keeps corral's own ids. `write_maps` refuses this if corral's root is the host's root.
    """
    if uid != 0:
        return IdMaps(uid=uid, gid=gid, outside_uid=uid, outside_gid=gid, drop_groups=False)
    able = abi.capget()[0] & NEEDED == NEEDED
    user, group = (unused_id("uid_map"), unused_id("gid_map")) if able else (0, gid)
    return IdMaps(
        uid=INSIDE_ROOT,
        gid=INSIDE_ROOT,
        outside_uid=user,
        outside_gid=group,
        drop_groups=user != 0 and group != 0,
    )


def unused_id(map_name: str) -> int:
    """Return OUTSIDE_ROOT if corral's user namespace maps this id, otherwise the highest mapped id.

    If the namespace maps only id 0, the highest id is root. Outside the namespace this root is
    usually an ordinary user. If it is the host's root, `write_maps` refuses the id.
    """
    rows = map(bytes.split, abi.read_file(f"/proc/self/{map_name}").splitlines())
    ranges = [(int(row[0]), int(row[2])) for row in rows]
    if any(start <= OUTSIDE_ROOT < start + count for start, count in ranges):
        return OUTSIDE_ROOT
    return max(start + count - 1 for start, count in ranges)


def permits(seen: os.stat_result, access: int, uid: int, gid: int) -> bool:
    needed = access | (1 if access != SEARCH and stat.S_ISDIR(seen.st_mode) else 0)
    shift = 6 if seen.st_uid == uid else 3 if seen.st_gid == gid else 0
    return (seen.st_mode >> shift) & needed == needed


def write_maps(maps: IdMaps, pid: int) -> None:
    """Write the id maps of a child that has a new user namespace and waits for the maps.

    corral writes them from outside, because the child itself could map only its own ids. Refuse to
    map the host's root, because the target would then own /proc/sys in the sandbox and be exempt
    from RLIMIT_NPROC.
    """
    if maps.outside_uid == 0 and abi.read_file("/proc/self/uid_map").split()[1] == b"0":
        raise OSError(1, "root has no capabilities here, so the target cannot get another user id")
    if not maps.drop_groups:
        abi.write_file(f"/proc/{pid}/setgroups", "deny")
    abi.write_file(f"/proc/{pid}/uid_map", f"{maps.uid} {maps.outside_uid} 1")
    abi.write_file(f"/proc/{pid}/gid_map", f"{maps.gid} {maps.outside_gid} 1")
