"""Plan the tier with namespaces. `compose` lists the steps in the order of execution."""

from __future__ import annotations

import os
import sys

from corral.errors import PolicyError
from corral.paths.posix import is_below, is_inside
from corral.plan.model import NOTIFICATION, SAMPLING, UNIX_SCOPE
from corral.platforms.linux import host_files, options
from corral.platforms.linux.mechanisms import (
    cgroup,
    kernel_quotas,
    keyring,
    landlock,
    loopback,
    namespaces,
    outbound_listeners,
    privileges,
    root_filesystem,
    seccomp,
    user_ids,
)
from corral.platforms.posix import rlimits

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corral.plan.model import Held, Step
    from corral.platforms.linux.host_files import Layout
    from corral.platforms.linux.mechanisms.root_filesystem import Bind, Mask
    from corral.policy.model import Control, Grant, Policy
    from corral.programs.model import Program

UNLIMITED_SPACE = 1 << 40
STATE = "/state"
"""HOME in the sandbox with `state = true`. corral keeps this directory between runs."""
TEMPORARY = "/tmp"  # noqa: S108 - a path inside


def compose(
    policy: Policy, program: Program, layout: Layout, controls: Sequence[Held]
) -> tuple[Step, ...]:
    mechanisms = {held.control: held.mechanism for held in controls}
    _refuse_broker(mechanisms)
    who, binds = layout.who, _binds(policy, program, layout)
    view = _view(policy, program, layout, binds)
    return (
        namespaces.Namespaces(),
        who,
        *cgroup.plan(policy.limits, controls, layout),
        *_published_ports(policy),
        *_sysv_lists(mechanisms),
        *_state(policy, program, layout),
        *_idmapped_mounts(binds, layout),
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
        *_landlock(policy, view, layout, mechanisms),
        _seccomp(policy, program, layout, mechanisms),
        *_task_limit(policy, mechanisms),
    )


def _refuse_broker(mechanisms: Mapping[Control, str]) -> None:
    if mechanisms.get("network", "").startswith(options.BROKER):
        raise PolicyError(
            "this kernel cannot connect a network namespace to corral's gateway",
            hint="`corral doctor -v` shows what was tried",
        )


def _view(
    policy: Policy, program: Program, layout: Layout, binds: tuple[Bind, ...]
) -> root_filesystem.View:
    masks, private = _masks(policy, layout), _private(policy, layout)
    files = _generated_files(layout.who, layout)
    links, home_links = _links(program, layout), _home_links(policy, layout)
    shown = [*(bind.target for bind in binds), *(path for path, _ in links)]
    made = [*shown, *private, *(path for path, _ in (*files, *home_links))]
    return root_filesystem.View(
        binds=binds,
        links=(*links, *_grant_links(policy, shown, made), *home_links),
        files=files,
        private=private,
        size=policy.limits.disk or UNLIMITED_SPACE,
        masks=masks,
        anchors=_anchors(binds, masks),
    )


def _landlock(
    policy: Policy, view: root_filesystem.View, layout: Layout, mechanisms: Mapping[Control, str]
) -> list[Step]:
    if "landlock" not in mechanisms.get("filesystem", ""):
        return []
    granted = [grant.path for grant in policy.grants if grant.access == "write"]
    own = [*view.private, *([STATE] if layout.state else [])]
    # In Landlock, a right on a directory applies to everything below it. Private directories
    # usually get more rights than write grants. But if a write grant is below a private directory,
    # the directory gets only the rights of a write grant, so that the grant does not get more.
    shared = [path for path in own if any(is_below(grant, path) for grant in granted)]
    return [
        landlock.Landlock(
            read=("/",),
            write=(*shared, *granted),
            private=tuple(path for path in own if path not in shared),
            devices=layout.devices,
            sockets=_sockets(policy),
            unix_scope=_is_unix_scoped(mechanisms),
        )
    ]


def _seccomp(
    policy: Policy, program: Program, layout: Layout, mechanisms: Mapping[Control, str]
) -> Step:
    scoped = _is_unix_scoped(mechanisms)
    if policy.own_unix_sockets and not scoped:
        _refuse_reachable_sockets(policy, program)
    return seccomp.Seccomp(
        machine=layout.machine,
        subprocess=policy.subprocess,
        unix_sockets=scoped or policy.own_unix_sockets or bool(_sockets(policy)),
        duty_cycle=mechanisms.get("cpu") == SAMPLING,
        notices=NOTIFICATION in mechanisms.get("subprocess", ""),
        limit_tasks=_is_task_limit_notified(mechanisms),
    )


def _is_unix_scoped(mechanisms: Mapping[Control, str]) -> bool:
    return UNIX_SCOPE in mechanisms.get("filesystem", "")


def _is_task_limit_notified(mechanisms: Mapping[Control, str]) -> bool:
    return NOTIFICATION in mechanisms.get("pids", "")


def _sockets(policy: Policy) -> tuple[str, ...]:
    return tuple(grant.path for grant in policy.grants if grant.access == "socket")


def _task_limit(policy: Policy, mechanisms: Mapping[Control, str]) -> list[Step]:
    if not _is_task_limit_notified(mechanisms):
        return []
    from corral.platforms.linux.mechanisms import task_limit

    return [task_limit.plan(policy)]


def _refuse_reachable_sockets(policy: Policy, program: Program) -> None:
    """Refuse `own_unix_sockets` if the target could connect to another program's socket.

    Another program could at any time make a socket in a directory that the target sees, and a
    read-only mount does not prevent a connection to it. So refuse if the target sees any directory
    of the host, with two exceptions: the system's directories, because they belong to root, and
    corral's store, because only corral writes to it.
    """
    from corral.directories import directories
    from corral.programs.needed_files import is_system

    store = os.path.join(directories().cache, "store")
    own = [path for path in program.reads if not is_system(path) and not is_inside(path, store)]
    granted = [grant.path for grant in policy.grants if grant.directory]
    found = [*granted, *filter(os.path.isdir, own)]
    if found:
        other = (
            "start it as a package (pypi:NAME or npm:NAME) with the system's interpreter"
            " (--python or --node /usr/bin/...)"
        )
        hint = "remove that grant" if granted else other
        raise PolicyError(
            f"own_unix_sockets: another program could have a socket in {found[0]}, and this"
            " kernel cannot keep the server from connecting to it",
            hint=f"{hint}, or use Linux 7.1 or later, where Landlock prevents it",
        )


def _published_ports(policy: Policy) -> list[Step]:
    if not policy.listen:
        return []
    from corral.platforms.linux.mechanisms.published_ports import OpenNamespaces, PublishedPorts

    published = PublishedPorts(ports=policy.listen, everywhere=policy.listen_everywhere)
    return [published, OpenNamespaces()]


def _sysv_lists(mechanisms: Mapping[Control, str]) -> list[Step]:
    if mechanisms.get("memory") != SAMPLING:
        return []
    from corral.platforms.linux.mechanisms.sysv_ipc import OpenSysvLists

    return [OpenSysvLists()]


def _state(policy: Policy, program: Program, layout: Layout) -> list[Step]:
    if not layout.state:
        return []
    from corral.platforms.posix.run_directories import State

    links = host_files.home_links(policy, layout)
    return [
        State(
            path=layout.state,
            inside=STATE,
            server=program.server or program.typed,
            start_directory=program.directory,
            links=links,
        )
    ]


def _network(policy: Policy) -> list[Step]:
    if not policy.allow:
        return [loopback.Loopback(), outbound_listeners.DeniedNetwork()]
    from corral.network.rules import parse_rules

    ports = tuple(sorted(parse_rules(policy.allow).ports))
    return [loopback.Loopback(alone=False), outbound_listeners.OutboundListeners(ports=ports)]


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
    binds += [
        _grant_to_bind(grant, policy.covered)
        for grant in policy.grants
        if not _is_repeated(grant, policy, program, layout)
    ]
    if layout.state:
        binds.append(root_filesystem.Bind(source=layout.state, target=STATE, access="write"))
    return tuple({bind.target: bind for bind in binds}.values())


def _is_repeated(grant: Grant, policy: Policy, program: Program, layout: Layout) -> bool:
    """Return whether the write grant of a directory already allows everything that the write grant
    of this file allows. A mount of the file would then only keep the target from replacing it.
    """
    if grant.access != "write" or grant.directory or grant.written not in {"", grant.path}:
        return False
    others = {one.path: one for one in policy.grants if is_below(grant.path, one.path)}
    layers = [*others, *program.reads, *(mask.path for mask in _masks(policy, layout))]
    above = max((path for path in layers if is_inside(grant.path, path)), key=len, default="")
    outer = others.get(above)
    return outer is not None and (outer.access, outer.owner, outer.group) == (
        "write", grant.owner, grant.group,
    )  # fmt: skip


def _masks(policy: Policy, layout: Layout) -> tuple[Mask, ...]:
    """Return the masks of the sandbox.

    `policy.covered` lists mounts inside grants, which the target must see as empty. Hide each of
    them with a mask. A mask of the layout is not needed if its path is inside a hidden mount.
    """
    covered = policy.covered
    reached = [
        mask for mask in layout.masks if not any(is_inside(mask.path, path) for path in covered)
    ]
    covers = [
        root_filesystem.Mask(path=path, kind="hide", directory=os.path.isdir(path))
        for path in covered
    ]
    return (*reached, *covers)


def _anchors(binds: Iterable[Bind], masks: Iterable[Mask]) -> tuple[str, ...]:
    """Return each directory in a write grant that has a bound or masked path somewhere below it.

    corral keeps the target from renaming these directories, because the bind or mask would then no
    longer be at its path.
    """
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


def _grant_to_bind(grant: Grant, covered: Iterable[str]) -> Bind:
    return root_filesystem.Bind(
        source=grant.path,
        target=grant.path,
        access="write" if grant.access == "write" else "read",
        device=grant.device,
        inode=grant.inode,
        covers=any(is_below(path, grant.path) for path in covered),
    )


def _idmapped_mounts(binds: Iterable[Bind], layout: Layout) -> list[Step]:
    if not (layout.owners or (layout.state and layout.uid == 0)):
        return []
    from corral.platforms.linux.mechanisms.idmapped_mounts import IdmappedMounts

    owners = {path: (uid, gid) for path, uid, gid in layout.owners}
    owners.setdefault(layout.state, (layout.uid, layout.gid))
    chosen = tuple((b, *owners[b.source]) for b in binds if b.source in owners)
    uid, gid = layout.who.outside_uid, layout.who.outside_gid
    return [IdmappedMounts(binds=chosen, uid=uid, gid=gid, state=layout.state)]


def _links(program: Program, layout: Layout) -> tuple[tuple[str, str], ...]:
    system = [(entry.path, entry.link) for entry in layout.system if entry.link]
    devices = [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ]
    return (*system, *devices, *program.links)


def _grant_links(
    policy: Policy, shown: Sequence[str], made: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Return the symlinks to make in the sandbox for grants whose path, as the user wrote it, goes
    through symlinks. With them the target can use this path too.

    Leave out links at or below the paths in `shown`, because the target sees them already. A link
    such as `/home` cannot be made in the sandbox if one of the paths in `made` is below it. The
    grant then gets a link of its own, at the path that the user wrote.
    """
    if not policy.grants:
        return ()
    from corral.paths.followed_links import follow

    found: dict[str, str] = {}
    for grant in policy.grants:
        written = grant.written or grant.path
        links, end = follow(written)
        for link in links if end == grant.path else ():
            is_above = any(is_inside(path, link) for path in made)
            found |= {written: end} if is_above else {link: follow(link)[1]}
    kept: dict[str, str] = {}
    for link, target in sorted(found.items()):
        is_shown = any(is_inside(link, top) for top in (*shown, *kept))
        is_above = any(is_inside(path, link) for path in made)
        if target and not is_shown and not is_above:
            kept[link] = target
    return tuple(kept.items())


def _home_links(policy: Policy, layout: Layout) -> tuple[tuple[str, str], ...]:
    """Return symlinks in the sandbox's home that lead to the grants below the user's home."""
    return tuple(
        (f"{layout.home}/{name}", path)
        for name, path in host_files.home_links(policy, layout)
        if not is_inside(path, layout.home)
    )


def _private(policy: Policy, layout: Layout) -> tuple[str, ...]:
    """Return the sandbox's own writable directories, but not those inside a grant."""
    granted = [grant.path for grant in policy.grants if grant.directory]
    paths = ("/dev/shm", "/tmp", "/var/tmp", layout.home)  # noqa: S108 - paths inside
    return tuple(
        path
        for path in dict.fromkeys(paths)
        if not any(is_inside(path, grant) for grant in granted)
    )


def home(layout: Layout) -> str:
    return STATE if layout.state else layout.home


def _generated_files(who: user_ids.IdMaps, layout: Layout) -> tuple[tuple[str, str], ...]:
    user = f"user:x:{who.uid}:{who.gid}:user:{home(layout)}:/bin/sh\n"
    return (
        ("/etc/passwd", f"{user}nobody:x:65534:65534:nobody:/:/bin/false\n"),
        ("/etc/group", f"user:x:{who.gid}:\nnogroup:x:65534:\n"),
        ("/etc/hosts", "127.0.0.1 localhost corral\n::1 localhost\n"),
        ("/etc/hostname", "corral\n"),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
        ("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"),
    )
