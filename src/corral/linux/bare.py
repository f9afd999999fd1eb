"""The tier without namespaces: containers and restricted hosts.

Landlock is the filesystem wall and seccomp all the others. What cannot be held here is refused: a
grant that contains a secret (Landlock cannot mask), unix sockets, a network allowlist. Names and
metadata of the host's files stay visible to stat, as does the list of processes when the target may
start some.
"""

from __future__ import annotations

import os
import sys

from corral.errors import PolicyError
from corral.linux import cgroup, guardian, ids, keyring, landlock, privileges, seccomp, workdir
from corral.posix import rlimits
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.linux.layout import Layout
    from corral.plan import Held, Step
    from corral.policy import Policy
    from corral.servers.program import Program

# Who the target is and what the machine is called; nothing that authenticates.
ETC = ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts")


def compose(
    policy: Policy, program: Program, layout: Layout, controls: Sequence[Held]
) -> tuple[Step, ...]:
    _refuse(policy, layout)
    who, group = layout.who.outside_uid, layout.who.outside_gid
    steps: list[Step] = [workdir.WorkDirectory(path=layout.directory, uid=who, gid=group)]
    steps += cgroup.plan(policy.limits, controls, layout)
    steps.append(guardian.Guardian())
    if layout.who.drop_groups:
        steps += [
            privileges.Bound(place="target"),
            ids.Become(uid=who, gid=group, drop_groups=True, place="target"),
        ]
    steps += [
        guardian.Follow(),
        keyring.Keyring(),
        rlimits.plan(replace(policy.limits, pids=None), count_init=False),
        privileges.Drop(),
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
        )
    )
    return tuple(steps)


SCOPE = "signal scope"


def _landlock(policy: Policy, program: Program, layout: Layout) -> landlock.Landlock:
    system = [entry.source for entry in layout.system if entry.source]
    etc = [path for path in ETC if os.path.exists(path)]
    granted = [grant.path for grant in policy.grants if grant.access == "read"]
    writable = [grant.path for grant in policy.grants if grant.access == "write"]
    return landlock.Landlock(
        read=tuple(dict.fromkeys((*system, *etc, *program.reads, *granted))),
        write=(layout.directory, *writable),
        devices=layout.devices,
        proc="all" if policy.subprocess else "own",
        seen=tuple((grant.path, grant.device, grant.inode) for grant in policy.grants),
    )


def _refuse(policy: Policy, layout: Layout) -> None:
    problems = [
        f"{mask.path} lies in a grant and cannot be hidden or held read-only"
        for mask in layout.masks
    ]
    problems += [
        f"{grant.path}: unix sockets cannot be told apart"
        for grant in policy.grants
        if grant.access == "socket"
    ]
    if policy.state:
        problems.append("state = true needs a private root")
    if problems:
        raise PolicyError(
            "without mount namespaces: " + "; ".join(problems),
            hint="grant a narrower directory, name the file itself, or allow user namespaces",
        )
