"""Plan the tier without namespaces, for containers and restricted hosts.

Landlock restricts access to files, and seccomp restricts everything else. If the policy allows
hosts or unix sockets, the supervisor connects the target's sockets. corral refuses a grant that
contains a secret, because Landlock cannot hide a file in a directory that the target may read. The
target can still see the names and metadata of the host's files with stat. If the target may start
processes, it can also see the list of the host's processes.
"""

from __future__ import annotations

import os
import sys

from corral.directories import target_homes
from corral.errors import PolicyError
from corral.paths.posix import is_inside
from corral.plan.model import NOTIFICATION, SAMPLING
from corral.platforms.linux import host_files, options, subreaper
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
from corral.safe_text import shell_word

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corral.plan.model import Held, Step
    from corral.platforms.linux.host_files import Layout
    from corral.policy.model import Policy
    from corral.programs.model import Program

SCOPE = "signal scope"
# The target may read these files of the host. They contain the names of users and machines, but no
# passwords or keys.
ETC = ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts")
# With `network.allow` the target cannot read these files. With them, a resolver could find the real
# addresses of hosts without corral. Without them every resolver asks 127.0.0.1, where corral
# answers.
NOT_WITH_NAMES = frozenset(("/etc/nsswitch.conf", "/etc/hosts"))
STATE_HINT = (
    "set XDG_STATE_HOME to a directory that only root can write to and every user can search, such"
    " as /var/lib"
)


def place_state(layout: Layout) -> Layout:
    """Return the layout with a state directory that the target can reach.

    If root runs corral and the target has another user id, the target cannot reach root's own state
    directory, so use one in `target_homes()`. In all other cases return the layout unchanged.
    """
    if not layout.state or not layout.who.drop_groups:
        return layout
    return replace(layout, state=os.path.join(target_homes(), os.path.basename(layout.state)))


def compose(
    policy: Policy, program: Program, layout: Layout, controls: Sequence[Held]
) -> tuple[Step, ...]:
    _refuse(policy, program, layout)
    uid, gid = layout.who.outside_uid, layout.who.outside_gid
    links = host_files.home_links(policy, layout) if policy.grants else ()
    steps: list[Step] = [
        run_directories.WorkDirectory(path=layout.directory, uid=uid, gid=gid, links=links)
    ]
    if layout.state:
        steps.append(_state(program, layout, links))
    steps += cgroup.plan(policy.limits, controls, layout)
    mechanisms = {held.control: held.mechanism for held in controls}
    broker = mechanisms.get("network", "").startswith(options.BROKER)
    if broker:
        same_file = mechanisms["network"] == options.BROKER
        steps.append(_brokered_sockets(policy, uid, gid, same_file=same_file))
    scoped = SCOPE in mechanisms.get("tree", "")
    steps.append(subreaper.Subreaper(scoped=scoped))
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
    changes = NOTIFICATION in mechanisms.get("filesystem", "")
    if changes:
        steps += _file_changes(policy, layout, broker=broker)
    if "landlock" in mechanisms.get("filesystem", ""):
        steps.append(_landlock(policy, program, layout))
    steps.append(
        seccomp.Seccomp(
            machine=layout.machine,
            subprocess=policy.subprocess,
            unix_sockets=broker and any(grant.access == "socket" for grant in policy.grants),
            namespaces=False,
            scoped=scoped,
            duty_cycle=mechanisms.get("cpu") == SAMPLING,
            notices=NOTIFICATION in mechanisms.get("subprocess", ""),
            broker=broker,
            limit_tasks=(limit_tasks := NOTIFICATION in mechanisms.get("pids", "")),
            file_changes=changes,
        )
    )
    if limit_tasks:
        from corral.platforms.linux.mechanisms import task_limit

        steps.append(task_limit.plan(policy))
    return tuple(steps)


def _state(program: Program, layout: Layout, links: tuple[tuple[str, str], ...]) -> Step:
    return run_directories.State(
        path=layout.state,
        inside=layout.state,
        server=program.server or program.typed,
        start_directory=program.directory,
        links=links,
        owner=(layout.who.outside_uid, layout.who.outside_gid) if layout.who.drop_groups else None,
    )


def _file_changes(policy: Policy, layout: Layout, *, broker: bool) -> Iterator[Step]:
    """Yield the step that lets the supervisor change modes and times for the target.

    Without a broker, also yield the step that lets the supervisor bind netlink sockets.
    """
    from corral.platforms.linux.mechanisms import writable_places

    yield writable_places.plan(policy, layout)
    if not broker:
        from corral.platforms.linux.mechanisms import netlink_sockets

        who = layout.who
        yield netlink_sockets.NetlinkSockets(uid=who.outside_uid, gid=who.outside_gid)


def _brokered_sockets(policy: Policy, uid: int, gid: int, *, same_file: bool) -> Step:
    from corral.platforms.linux.mechanisms.brokered_sockets import BrokeredSockets

    return BrokeredSockets(
        allow=policy.allow,
        admit=policy.admit,
        ports=policy.listen,
        unix=tuple(
            (grant.written or grant.path, grant.path, grant.device, grant.inode)
            for grant in policy.grants
            if grant.access == "socket"
        ),
        uid=uid,
        gid=gid,
        same_file=same_file,
        everywhere=policy.listen_everywhere,
    )


def _landlock(policy: Policy, program: Program, layout: Layout) -> landlock.Landlock:
    system = [entry.source for entry in layout.system if entry.source]
    hidden = NOT_WITH_NAMES if policy.allow else frozenset()
    etc = [path for path in ETC if path not in hidden and os.path.exists(path)]
    granted = [grant.path for grant in policy.grants if grant.access == "read"]
    writable = [grant.path for grant in policy.grants if grant.access == "write"]
    return landlock.Landlock(
        read=tuple(dict.fromkeys((*system, *etc, *program.reads, *granted))),
        write=tuple(writable),
        private=(*run_directories.inner(layout.directory), *filter(None, (layout.state,))),
        devices=layout.devices,
        proc="all" if policy.subprocess else "own",
        seen=(
            *((path, *found) for path, found in zip(program.reads, program.seen, strict=False)),
            *((grant.path, grant.device, grant.inode) for grant in policy.grants),
        ),
        deny_tcp=True,
    )


def _refuse(policy: Policy, program: Program, layout: Layout) -> None:
    # Do not refuse a repository that the user granted by name. For this the plan only warns that
    # git may run programs that the target has written.
    masks = [mask for mask in layout.masks if mask.role != "named"]
    readable = os.R_OK | os.X_OK
    locked = [one.path for one in masks if one.directory and not os.access(one.path, readable)]
    masks = [mask for mask in masks if mask.path not in locked]
    inner = [f"{mask.path} is in a grant, but cannot be hidden or made read-only" for mask in masks]
    inner += [
        f"{path} is a mount of the system in a grant, but cannot be covered"
        for path in policy.covered
    ]
    inner += _read_only_in_writable(policy, program)
    sockets: list[str] = []
    if policy.own_unix_sockets:
        sockets.append(
            "own_unix_sockets needs a private root: without one, every socket can be reached"
        )
    closed: list[str] = []
    kept: list[str] = []
    if layout.who.drop_groups:
        closed = _unreachable(policy, program, layout.who.outside_uid, layout.who.outside_gid)
        if policy.state:
            kept = _closed_state(layout.who.outside_uid, layout.who.outside_gid)
    words = [shell_word(one.path) for one in masks if one.role == "repository"]
    repository = f" (--write {words[0]})" if words else ""
    hints = {
        f"make it readable first: chmod u+rx {' '.join(map(shell_word, locked))}": [
            f"{path} is in a grant, but could not be searched" for path in locked
        ],
        "grant a narrower directory, or name the file itself" + repository: inner,
        "run it where namespaces are allowed; `corral doctor` says what forbids them": sockets,
        "start corral as the user who owns these files (in a container: `--user`)": closed,
        STATE_HINT: kept,
    }
    if problems := [one for found in hints.values() for one in found]:
        raise PolicyError(
            "without mount namespaces: " + "; ".join(problems),
            hint="; ".join(hint for hint, found in hints.items() if found),
        )


def _read_only_in_writable(policy: Policy, program: Program) -> list[str]:
    """Return an error text for each read-only path inside a write grant.

    corral refuses such a policy, because Landlock cannot remove rights below a writable directory.
    """
    reads = [grant.path for grant in policy.grants if grant.access == "read"]
    return [
        f"{path} cannot be read-only in {grant.path}, which is writable"
        for grant in policy.grants
        if grant.access == "write"
        for path in dict.fromkeys((*reads, *program.reads))
        if is_inside(path, grant.path)
    ]


def _unreachable(policy: Policy, program: Program, uid: int, gid: int) -> list[str]:
    """Return an error text for each granted or needed path that the target could not open.

    This can happen if root runs corral, because the target then has another user id. The program's
    own files can be among these paths, for example if they are in root's cache.
    """
    wanted = {"read": user_ids.READ, "write": user_ids.WRITE}
    paths = [
        (grant.path, wanted[grant.access]) for grant in policy.grants if grant.access in wanted
    ]
    paths += [(path, wanted["read"]) for path in program.reads]
    closed = [_first_closed(path, access, uid, gid) for path, access in paths]
    return [
        f"{path} is closed to uid {uid}, the target's user id"
        for path in dict.fromkeys(closed)
        if path
    ]


def _closed_state(uid: int, gid: int) -> list[str]:
    above = os.path.dirname(target_homes())
    try:
        closed = _first_closed(above, user_ids.SEARCH, uid, gid)
    except OSError as error:
        return [f"state = true: {above}: {error.strerror}"]
    return [f"state = true: {closed} is closed to uid {uid}"] if closed else []


def _first_closed(path: str, wanted: int, uid: int, gid: int) -> str:
    """Return the path that keeps the user `uid` from the wanted access to `path`.

    This is the first directory above `path` that the user cannot search, or `path` itself if all
    these directories can be searched. Return "" if the user has the access. Raise OSError if a path
    does not exist.
    """
    parts = path.split("/")
    for depth in range(1, len(parts)):
        parent = "/".join(parts[:depth]) or "/"
        if not user_ids.permits(os.stat(parent), user_ids.SEARCH, uid, gid):
            return parent
    return "" if user_ids.permits(os.stat(path), wanted, uid, gid) else path
