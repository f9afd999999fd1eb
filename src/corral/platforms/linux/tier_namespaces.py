"""The tier with namespaces: `compose` is the order of application, readable aloud."""

from __future__ import annotations

import sys

from corral.paths.posix import is_below, is_inside
from corral.plan.model import SAMPLING
from corral.platforms.linux.mechanisms import (
    cgroup,
    idmapped_mounts,
    keyring,
    landlock,
    loopback,
    namespaces,
    privileges,
    root_filesystem,
    seccomp,
    user_ids,
)
from corral.platforms.posix import rlimits

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corral.plan.model import Held, Step
    from corral.platforms.linux.host_files import Layout
    from corral.policy.model import Grant, Policy
    from corral.programs.model import Program

UNLIMITED_SPACE = 1 << 40
STATE = "/state"
"""Where the directory that survives runs is found inside."""
TEMPORARY = "/tmp"  # noqa: S108 - the sandbox's own


def compose(
    policy: Policy, program: Program, layout: Layout, controls: Sequence[Held]
) -> tuple[Step, ...]:
    who = layout.who
    binds = _binds(policy, program, layout)
    view = root_filesystem.View(
        binds=binds,
        links=_links(program, layout),
        files=_made(who, layout),
        private=_private(policy, layout),
        size=policy.limits.disk or UNLIMITED_SPACE,
        masks=layout.masks,
        anchors=_anchors(binds),
    )
    steps: list[Step] = [namespaces.Namespaces(), who]
    steps += cgroup.plan(policy.limits, controls, layout)
    if policy.allow:
        steps.append(_door())
    if policy.listen:
        steps += _inward(policy.listen)
    mechanisms = {held.control: held.mechanism for held in controls}
    if mechanisms.get("memory") == SAMPLING:
        steps += _counted()
    if layout.state:
        steps.append(_state(layout.state))
    if layout.owners or (layout.state and layout.uid == 0):
        steps.append(_idmapped(binds, who, layout))
    steps += [
        namespaces.CgroupNamespace(),
        namespaces.Hostname(name="corral"),
        user_ids.NoNesting(),
        *_network(policy),
        root_filesystem.Sources(binds=binds),
        user_ids.Become(uid=who.uid, gid=who.gid, drop_groups=who.drop_groups),
        view,
        privileges.Bound(),
        keyring.Keyring(),
        rlimits.plan(policy.limits, count_init=True),
        privileges.Drop(),
    ]
    if "landlock" in mechanisms.get("filesystem", ""):
        writable = (*view.private, *(bind.target for bind in binds if bind.access == "write"))
        steps.append(landlock.Landlock(read=("/",), write=writable, devices=layout.devices))
    steps.append(
        seccomp.Seccomp(
            machine=layout.machine,
            subprocess=policy.subprocess,
            unix_sockets=any(grant.access == "socket" for grant in policy.grants),
        )
    )
    return tuple(steps)


def _inward(ports: tuple[int, ...]) -> list[Step]:
    from corral.platforms.linux.mechanisms import published_ports

    return [published_ports.HostPorts(ports=ports), published_ports.Handles()]


def _counted() -> list[Step]:
    from corral.platforms.linux.mechanisms import sysv_ipc

    return [sysv_ipc.Window(), sysv_ipc.Objects()]


def _door() -> Step:
    from corral.platforms.linux.mechanisms import outbound_listeners

    return outbound_listeners.Door()


def _network(policy: Policy) -> list[Step]:
    """Loopback alone, or loopback with every address leading to the gateway."""
    if not policy.allow:
        return [loopback.Loopback()]
    from corral.network.rules import parse_rules
    from corral.platforms.linux.mechanisms import outbound_listeners

    ports = tuple(sorted(parse_rules(policy.allow).ports))
    return [loopback.Loopback(alone=False), outbound_listeners.Listeners(ports=ports)]


def _binds(policy: Policy, program: Program, layout: Layout) -> tuple[root_filesystem.Bind, ...]:
    system = [
        root_filesystem.Bind(source=e.source, target=e.path) for e in layout.system if e.source
    ]
    devices = [
        root_filesystem.Bind(source=path, target=path, access="device") for path in layout.devices
    ]
    reads = [
        root_filesystem.Bind(source=path, target=path, device=device, inode=inode)
        for path, (device, inode) in zip(program.reads, program.seen, strict=True)
    ]
    grants = [_granted(grant) for grant in policy.grants]
    state = (
        [root_filesystem.Bind(source=layout.state, target=STATE, access="write")]
        if layout.state
        else []
    )
    chosen = {bind.target: bind for bind in (*system, *devices, *reads, *grants, *state)}
    return tuple(chosen.values())


def _anchors(binds: Iterable[root_filesystem.Bind]) -> tuple[str, ...]:
    """The directories in a write grant that lead to something bound inside it."""
    targets = [bind.target for bind in binds]
    found: dict[str, None] = {}
    for grant in [bind.target for bind in binds if bind.access == "write"]:
        for target in targets:
            if is_below(target, grant):
                parts = target[len(grant) + 1 :].split("/")[:-1]
                for depth in range(len(parts)):
                    found["/".join((grant, *parts[: depth + 1]))] = None
    return tuple(path for path in found if path not in targets)


def _state(path: str) -> Step:
    from corral.platforms.posix.state_directory import State

    return State(path=path, inside=STATE)


def _granted(grant: Grant) -> root_filesystem.Bind:
    return root_filesystem.Bind(
        source=grant.path,
        target=grant.path,
        access="write" if grant.access == "write" else "read",
        device=grant.device,
        inode=grant.inode,
    )


def _idmapped(
    binds: Iterable[root_filesystem.Bind], who: user_ids.Ids, layout: Layout
) -> idmapped_mounts.Idmap:
    owners = {path: (uid, gid) for path, uid, gid in layout.owners}
    owners[layout.state] = (layout.uid, layout.gid)
    chosen = tuple((b, *owners[b.source]) for b in binds if b.source in owners)
    return idmapped_mounts.Idmap(binds=chosen, uid=who.outside_uid, gid=who.outside_gid)


def _links(program: Program, layout: Layout) -> tuple[tuple[str, str], ...]:
    system = [(entry.path, entry.link) for entry in layout.system if entry.link]
    devices = [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ]
    return (*system, *devices, *program.links)


def _private(policy: Policy, layout: Layout) -> tuple[str, ...]:
    """Writable places of the sandbox's own, unless a grant stands there or above."""
    granted = [grant.path for grant in policy.grants if grant.directory]
    places = ("/dev/shm", "/tmp", "/var/tmp", layout.home)  # noqa: S108 - inside, not the host's
    return tuple(
        place
        for place in dict.fromkeys(places)
        if not any(is_inside(place, path) for path in granted)
    )


def _made(who: user_ids.Ids, layout: Layout) -> tuple[tuple[str, str], ...]:
    user = f"user:x:{who.uid}:{who.gid}:user:{layout.home}:/bin/sh\n"
    return (
        ("/etc/passwd", f"{user}nobody:x:65534:65534:nobody:/:/bin/false\n"),
        ("/etc/group", f"user:x:{who.gid}:\nnogroup:x:65534:\n"),
        ("/etc/hosts", "127.0.0.1 localhost corral\n::1 localhost\n"),
        ("/etc/hostname", "corral\n"),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
        ("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"),
    )
