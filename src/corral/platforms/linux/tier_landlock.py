"""The tier without namespaces: containers and restricted hosts.

Landlock is the filesystem wall and seccomp all the others. What cannot be enforced here is refused:
a grant that contains a secret (Landlock cannot mask), unix sockets, a network allowlist. Names and
metadata of the host's files stay visible to stat, as does the list of processes when the target may
start some.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.errors import PolicyError
from corral.paths.posix import is_inside
from corral.plan.model import SAMPLING
from corral.platforms.linux import subreaper
from corral.platforms.linux.mechanisms import (
    cgroup,
    keyring,
    landlock,
    privileges,
    seccomp,
    user_ids,
)
from corral.platforms.posix import rlimits, run_directories
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.model import Held, Step
    from corral.platforms.linux.host_files import Layout
    from corral.policy.model import Policy
    from corral.programs.model import Program

SCOPE = "signal scope"
# Names of users and machines; nothing that authenticates.
ETC = ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts")


def compose(
    policy: Policy, program: Program, layout: Layout, controls: Sequence[Held]
) -> tuple[Step, ...]:
    _refuse(policy, program, layout)
    uid, gid = layout.who.outside_uid, layout.who.outside_gid
    steps: list[Step] = [run_directories.WorkDirectory(path=layout.directory, uid=uid, gid=gid)]
    steps += cgroup.plan(policy.limits, controls, layout)
    steps.append(subreaper.Subreaper())
    if layout.who.drop_groups:
        steps += [
            privileges.BoundingSet(stage="target"),
            user_ids.SetIds(uid=uid, gid=gid, drop_groups=True, stage="target"),
        ]
    steps += [
        subreaper.ParentDeathSignal(),
        keyring.Keyring(),
        rlimits.plan(replace(policy.limits, pids=None), count_init=False),
        privileges.Capabilities(),
    ]
    mechanisms = {held.control: held.mechanism for held in controls}
    if "landlock" in mechanisms.get("filesystem", ""):
        steps.append(_landlock(policy, program, layout))
    steps.append(
        seccomp.Seccomp(
            machine=layout.machine,
            subprocess=policy.subprocess,
            unix_sockets=False,
            namespaces=False,
            scoped=SCOPE in mechanisms.get("tree", ""),
            duty_cycle=mechanisms.get("cpu") == SAMPLING,
        )
    )
    return tuple(steps)


def _landlock(policy: Policy, program: Program, layout: Layout) -> landlock.Landlock:
    system = [entry.source for entry in layout.system if entry.source]
    etc = [path for path in ETC if os.path.exists(path)]
    granted = [grant.path for grant in policy.grants if grant.access == "read"]
    writable = [grant.path for grant in policy.grants if grant.access == "write"]
    return landlock.Landlock(
        read=tuple(dict.fromkeys((*system, *etc, *program.reads, *granted))),
        write=(*run_directories.inner(layout.directory), *writable),
        devices=layout.devices,
        proc="all" if policy.subprocess else "own",
        seen=(
            *((path, *found) for path, found in zip(program.reads, program.seen, strict=False)),
            *((grant.path, grant.device, grant.inode) for grant in policy.grants),
        ),
    )


def _refuse(policy: Policy, program: Program, layout: Layout) -> None:
    # In a repository that the user named the plan warns anyway that git can be made to run things.
    masks = [mask for mask in layout.masks if mask.role != "named"]
    problems = [
        f"{mask.path} lies in a grant and cannot be hidden or held read-only" for mask in masks
    ]
    problems += [
        f"{path} is a mount of the system in a grant, and cannot be covered"
        for path in policy.covered
    ]
    problems += [
        f"{grant.path}: unix sockets cannot be told apart"
        for grant in policy.grants
        if grant.access == "socket"
    ]
    if policy.state:
        problems.append("state = true needs a private root")
    problems += _read_only_in_writable(policy, program)
    if layout.who.drop_groups:
        problems += _unreachable(policy, program, layout.who.outside_uid, layout.who.outside_gid)
    if problems:
        raise PolicyError(
            "without mount namespaces: " + "; ".join(problems),
            hint="grant a narrower directory, name the file itself"
            + "".join([f" (--write {one.path})" for one in masks if one.role == "repository"][:1])
            + ", allow user namespaces, or start corral as the user whose files they are",
        )


def _read_only_in_writable(policy: Policy, program: Program) -> list[str]:
    """Landlock adds up what the directories above a path allow: nothing below can have less."""
    reads = [grant.path for grant in policy.grants if grant.access == "read"]
    return [
        f"{path} cannot be held read-only in {grant.path}, which may be written"
        for grant in policy.grants
        if grant.access == "write"
        for path in dict.fromkeys((*reads, *program.reads))
        if is_inside(path, grant.path)
    ]


def _unreachable(policy: Policy, program: Program, uid: int, gid: int) -> list[str]:
    """A run that root starts has an id of its own, which may not read root's files.

    The program's own may be among them: corral's cache is closed to every other user.
    """
    wanted = {"read": 4, "write": 6}
    paths = [
        (grant.path, wanted[grant.access]) for grant in policy.grants if grant.access in wanted
    ]
    paths += [(path, wanted["read"]) for path in program.reads]
    closed = [_first_closed(path, access, uid, gid) for path, access in paths]
    return [
        f"{path} is closed to uid {uid}, as which the target runs"
        for path in dict.fromkeys(closed)
        if path
    ]


def _first_closed(path: str, wanted: int, uid: int, gid: int) -> str:
    """Return the first parent, or the path itself, whose mode keeps the user out; "" if none."""
    parts = path.split("/")
    for depth in range(1, len(parts)):
        parent = "/".join(parts[:depth]) or "/"
        if not _permits(os.stat(parent), 1, uid, gid):
            return parent
    seen = os.stat(path)
    needed = wanted | (1 if stat.S_ISDIR(seen.st_mode) else 0)
    return "" if _permits(seen, needed, uid, gid) else path


def _permits(seen: os.stat_result, needed: int, uid: int, gid: int) -> bool:
    shift = 6 if seen.st_uid == uid else 3 if seen.st_gid == gid else 0
    return (seen.st_mode >> shift) & needed == needed
