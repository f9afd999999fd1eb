"""Linux: one file a mechanism. `compose` is the order of application, readable aloud."""

from __future__ import annotations

import sys

from corral.linux import (
    cgroup,
    ids,
    idmap,
    landlock,
    loopback,
    namespaces,
    privileges,
    root,
    seccomp,
)
from corral.plan import SAMPLING, Option
from corral.posix import rlimits

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corral.linux.layout import Layout
    from corral.plan import Chains, Held, Step
    from corral.policy import Grant, Policy
    from corral.servers.program import Program

MECHANISMS = (
    cgroup,
    namespaces,
    ids,
    idmap,
    loopback,
    root,
    privileges,
    rlimits,
    landlock,
    seccomp,
)
"""In order of application; each has the verbs it needs of probe, plan, apply and verify."""

UNLIMITED_SPACE = 1 << 40
NAMESPACES = ("user_namespaces", "mount_namespace", "pid_namespace")


def chains(policy: Policy) -> Chains:
    """What can hold each control here, best first."""
    alone = not policy.subprocess  # one process, so what holds a process holds the tree
    return {
        "filesystem": (
            Option(
                mechanism="namespaces + pivot_root + landlock",
                needs=(*NAMESPACES, "landlock"),
                status="verified",
            ),
            Option(mechanism="namespaces + pivot_root", needs=NAMESPACES, status="verified"),
        ),
        "network": _network(policy),
        "subprocess": (
            Option(mechanism="seccomp", needs=("seccomp", "exec_cookie"), status="verified"),
        ),
        "syscalls": (Option(mechanism="seccomp", needs=("seccomp",), status="verified"),),
        "tree": (Option(mechanism="pid namespace", needs=NAMESPACES, status="verified"),),
        "memory": (_cgroup("memory"), *_sampled(policy, "memory")),
        "cpu": (_cgroup("cpu"), *_sampled(policy, "cpu")),
        "cpu_time": (_rlimit("RLIMIT_CPU"),) if alone else _sampled(policy, "cpu_time"),
        "pids": (
            _cgroup("pids"),
            Option(mechanism="RLIMIT_NPROC", needs=("user_namespaces", "nproc")),
            *_sampled(policy, "pids"),
        ),
        "fds": (_rlimit("RLIMIT_NOFILE"),),
        "io": (_cgroup("io"),),
        "disk": (
            Option(mechanism="sized tmpfs + RLIMIT_FSIZE", needs=NAMESPACES, note=_disk(policy)),
        ),
        "timeout": (Option(mechanism="supervisor"),),
        "address_space": (_rlimit("RLIMIT_AS"),),
    }


def _cgroup(controller: str) -> Option:
    return Option(mechanism=f"cgroup {controller}", needs=(f"cgroup_{controller}",))


def _sampled(policy: Policy, control: str) -> tuple[Option, ...]:
    """Looking costs wake-ups, so only a limit that was stated is held that way."""
    if control not in policy.stated:
        return ()
    note = "the tree is looked at ten times a second and killed when it is over"
    return (Option(mechanism=SAMPLING, needs=("sampling",), status="cooperative", note=note),)


def _rlimit(name: str) -> Option:
    return Option(mechanism=name, needs=("rlimits",))


def _network(policy: Policy) -> tuple[Option, ...]:
    if policy.allow or policy.listen:
        return ()
    return (Option(mechanism="network namespace", needs=("network_namespace",), status="verified"),)


def _disk(policy: Policy) -> str:
    granted = policy.state or any(grant.access == "write" for grant in policy.grants)
    return "write grants and state are not size-limited" if granted else ""


def compose(
    policy: Policy, program: Program, layout: Layout, controls: Sequence[Held] = ()
) -> tuple[Step, ...]:
    who = ids.choose(layout.uid, layout.gid)
    binds = _binds(policy, program, layout)
    view = root.View(
        binds=binds,
        links=_links(program, layout),
        files=_made(who, layout),
        private=_private(policy, layout),
        size=policy.limits.disk or UNLIMITED_SPACE,
        masks=layout.masks,
    )
    steps: list[Step] = [namespaces.Namespaces(), who]
    steps += _leaf(policy, layout, controls)
    if layout.state:
        steps.append(_state(layout.state))
    if layout.owners or (layout.state and layout.uid == 0):
        steps.append(_idmapped(binds, who, layout))
    steps += [
        namespaces.CgroupNamespace(),
        namespaces.Hostname(name="corral"),
        ids.NoNesting(),
        loopback.Loopback(),
        root.Sources(binds=binds),
        ids.Become(uid=who.uid, gid=who.gid, drop_groups=who.drop_groups),
        view,
        privileges.Bound(),
        rlimits.plan(policy.limits, count_init=True),
        privileges.Drop(),
        landlock.Landlock(
            read=("/",),
            write=(*view.private, *(b.target for b in binds if b.access == "write")),
            devices=layout.devices,
        ),
        seccomp.Seccomp(
            machine=layout.machine,
            subprocess=policy.subprocess,
            unix_sockets=any(grant.access == "socket" for grant in policy.grants),
        ),
    ]
    return tuple(steps)


def _leaf(policy: Policy, layout: Layout, controls: Sequence[Held]) -> list[Step]:
    prefix = "cgroup "
    held = [item.control for item in controls if item.mechanism.startswith(prefix)]
    if not held or layout.cgroup is None:
        return []
    leaf = cgroup.Leaf(
        base=layout.cgroup.path,
        name=layout.run,
        controllers=tuple(held),
        settings=cgroup.settings(policy.limits, held, layout.disks),
    )
    return [leaf, cgroup.Enter()]


def _binds(policy: Policy, program: Program, layout: Layout) -> tuple[root.Bind, ...]:
    system = [root.Bind(source=e.source, target=e.path) for e in layout.system if e.source]
    devices = [root.Bind(source=path, target=path, access="device") for path in layout.devices]
    reads = [
        root.Bind(source=path, target=path, device=device, inode=inode)
        for path, (device, inode) in zip(program.reads, program.seen, strict=True)
    ]
    grants = [_granted(grant) for grant in policy.grants]
    state = (
        [root.Bind(source=layout.state, target="/state", access="write")] if layout.state else []
    )
    chosen = {bind.target: bind for bind in (*system, *devices, *reads, *grants, *state)}
    return tuple(chosen.values())


def _state(path: str) -> Step:
    from corral.linux import state

    return state.State(path=path)


def _granted(grant: Grant) -> root.Bind:
    return root.Bind(
        source=grant.path,
        target=grant.path,
        access="write" if grant.access == "write" else "read",
        device=grant.device,
        inode=grant.inode,
    )


def _idmapped(binds: Iterable[root.Bind], who: ids.Ids, layout: Layout) -> idmap.Idmap:
    owners = {path: (uid, gid) for path, uid, gid in layout.owners}
    owners[layout.state] = (layout.uid, layout.gid)
    chosen = tuple((b, *owners[b.source]) for b in binds if b.source in owners)
    return idmap.Idmap(binds=chosen, uid=who.outside_uid, gid=who.outside_gid)


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
        if not any(place == path or place.startswith(f"{path}/") for path in granted)
    )


def _made(who: ids.Ids, layout: Layout) -> tuple[tuple[str, str], ...]:
    passwd = f"user:x:{who.uid}:{who.gid}:user:{layout.home}:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
    return (
        ("/etc/passwd", passwd),
        ("/etc/group", f"user:x:{who.gid}:\nnogroup:x:65534:\n"),
        ("/etc/hosts", "127.0.0.1 localhost corral\n::1 localhost\n"),
        ("/etc/hostname", "corral\n"),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
        ("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"),
    )
