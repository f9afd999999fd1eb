"""The tier with namespaces: `compose` is the order of application."""

from __future__ import annotations

import sys

from corral.paths.posix import is_below, is_inside
from corral.plan.model import SAMPLING
from corral.platforms.linux.mechanisms import (
    cgroup,
    kernel_quotas,
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
    from corral.platforms.linux.mechanisms.root_filesystem import Bind, Mask
    from corral.policy.model import Grant, Policy
    from corral.programs.model import Program

UNLIMITED_SPACE = 1 << 40
STATE = "/state"
"""Where the target finds the directory that survives runs."""
TEMPORARY = "/tmp"  # noqa: S108 - the sandbox's own


def compose(
    policy: Policy, program: Program, layout: Layout, controls: Sequence[Held]
) -> tuple[Step, ...]:
    who = layout.who
    binds, masks = _binds(policy, program, layout), _masks(policy, layout)
    view = root_filesystem.View(
        binds=binds,
        links=_links(program, layout),
        files=_generated_files(who, layout),
        private=_private(policy, layout),
        size=policy.limits.disk or UNLIMITED_SPACE,
        masks=masks,
        anchors=_anchors(binds, masks),
    )
    steps: list[Step] = [namespaces.Namespaces(), who]
    steps += cgroup.plan(policy.limits, controls, layout)
    if policy.allow:
        steps.append(_listener_channel())
    if policy.listen:
        steps += _published_ports(policy.listen)
    mechanisms = {held.control: held.mechanism for held in controls}
    if mechanisms.get("memory") == SAMPLING:
        steps += _sysv_lists()
    if layout.state:
        steps.append(_state(layout.state))
    if layout.owners or (layout.state and layout.uid == 0):
        steps.append(_idmapped_mounts(binds, who, layout))
    steps += [
        namespaces.CgroupNamespace(),
        namespaces.Hostname(hostname="corral"),
        user_ids.NoNestedUserNamespaces(),
        kernel_quotas.KernelQuotas(),
        *_network(policy),
        root_filesystem.Sources(binds=binds),
        user_ids.SetIds(uid=who.uid, gid=who.gid, drop_groups=who.drop_groups),
        view,
        privileges.BoundingSet(),
        keyring.Keyring(),
        rlimits.plan(policy.limits, count_init=True),
        privileges.Capabilities(),
    ]
    if "landlock" in mechanisms.get("filesystem", ""):
        writable = (*view.private, *(bind.target for bind in binds if bind.access == "write"))
        steps.append(landlock.Landlock(read=("/",), write=writable, devices=layout.devices))
    steps.append(
        seccomp.Seccomp(
            machine=layout.machine,
            subprocess=policy.subprocess,
            unix_sockets=any(grant.access == "socket" for grant in policy.grants),
            duty_cycle=mechanisms.get("cpu") == SAMPLING,
        )
    )
    return tuple(steps)


def _listener_channel() -> Step:
    from corral.platforms.linux.mechanisms.outbound_listeners import ListenerChannel

    return ListenerChannel()


def _published_ports(ports: tuple[int, ...]) -> list[Step]:
    from corral.platforms.linux.mechanisms.published_ports import OpenNamespaces, PublishedPorts

    return [PublishedPorts(ports=ports), OpenNamespaces()]


def _sysv_lists() -> list[Step]:
    from corral.platforms.linux.mechanisms.sysv_ipc import OpenSysvLists, SysvChannel

    return [SysvChannel(), OpenSysvLists()]


def _network(policy: Policy) -> list[Step]:
    """Return loopback alone, or loopback with every address leading to the gateway."""
    if not policy.allow:
        return [loopback.Loopback()]
    from corral.network.rules import parse_rules
    from corral.platforms.linux.mechanisms.outbound_listeners import OutboundListeners

    ports = tuple(sorted(parse_rules(policy.allow).ports))
    return [loopback.Loopback(alone=False), OutboundListeners(ports=ports)]


def _binds(policy: Policy, program: Program, layout: Layout) -> tuple[Bind, ...]:
    binds = [
        root_filesystem.Bind(source=e.source, target=e.path) for e in layout.system if e.source
    ]
    binds += [
        root_filesystem.Bind(source=path, target=path, access="device") for path in layout.devices
    ]
    binds += [
        root_filesystem.Bind(source=path, target=path, device=device, inode=inode)
        for path, (device, inode) in zip(program.reads, program.seen, strict=True)
    ]
    binds += [_grant_to_bind(grant, policy.covered) for grant in policy.grants]
    if layout.state:
        binds.append(root_filesystem.Bind(source=layout.state, target=STATE, access="write"))
    return tuple({bind.target: bind for bind in binds}.values())


def _masks(policy: Policy, layout: Layout) -> tuple[Mask, ...]:
    """Return the masks, and covers of the system's mounts below grants."""
    covered = policy.covered
    reached = [
        mask for mask in layout.masks if not any(is_inside(mask.path, path) for path in covered)
    ]
    return (*reached, *root_filesystem.cover_mounts(covered))


def _anchors(binds: Iterable[Bind], masks: Iterable[Mask]) -> tuple[str, ...]:
    """Return the directories in a write grant that lead to something bound or masked inside it."""
    layers: dict[str, str] = {mask.path: mask.kind for mask in masks}
    layers |= {bind.target: bind.access for bind in binds}
    found: dict[str, None] = {}
    for target in layers:
        writable, at = False, ""
        for name in target.split("/")[1:-1]:
            at = f"{at}/{name}"
            if at in layers:
                writable = layers[at] == "write"
            elif writable:
                found[at] = None
    return tuple(found)


def _state(path: str) -> Step:
    from corral.platforms.posix.run_directories import State

    return State(path=path, inside=STATE)


def _grant_to_bind(grant: Grant, covered: Iterable[str]) -> Bind:
    return root_filesystem.Bind(
        source=grant.path,
        target=grant.path,
        access="write" if grant.access == "write" else "read",
        device=grant.device,
        inode=grant.inode,
        covers=any(is_below(path, grant.path) for path in covered),
    )


def _idmapped_mounts(binds: Iterable[Bind], who: user_ids.IdMaps, layout: Layout) -> Step:
    from corral.platforms.linux.mechanisms.idmapped_mounts import IdmappedMounts

    owners = {path: (uid, gid) for path, uid, gid in layout.owners}
    owners[layout.state] = (layout.uid, layout.gid)
    chosen = tuple((b, *owners[b.source]) for b in binds if b.source in owners)
    return IdmappedMounts(binds=chosen, uid=who.outside_uid, gid=who.outside_gid)


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
    """Return the sandbox's own writable directories, without those inside a grant."""
    granted = [grant.path for grant in policy.grants if grant.directory]
    paths = ("/dev/shm", "/tmp", "/var/tmp", layout.home)  # noqa: S108 - inside, not the host's
    return tuple(
        path
        for path in dict.fromkeys(paths)
        if not any(is_inside(path, grant) for grant in granted)
    )


def _generated_files(who: user_ids.IdMaps, layout: Layout) -> tuple[tuple[str, str], ...]:
    user = f"user:x:{who.uid}:{who.gid}:user:{layout.home}:/bin/sh\n"
    return (
        ("/etc/passwd", f"{user}nobody:x:65534:65534:nobody:/:/bin/false\n"),
        ("/etc/group", f"user:x:{who.gid}:\nnogroup:x:65534:\n"),
        ("/etc/hosts", "127.0.0.1 localhost corral\n::1 localhost\n"),
        ("/etc/hostname", "corral\n"),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
        ("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"),
    )
