"""Export a policy as an OCI runtime bundle, for runc and similar runtimes.

The bundle mounts the same files of this host as `corral run` does, so it works only on this host. A
runtime cannot allow host names, has no timeout and does not use Landlock.
"""

import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from corral.errors import PolicyError
from corral.export.holding import Engine, decide_for_engine
from corral.export.publish import publish
from corral.export.seccomp_profile import build_profile
from corral.plan.model import Composition, Held
from corral.platforms.linux import host_files, tier_namespaces
from corral.platforms.linux.mechanisms import cgroup, root_filesystem
from corral.platforms.posix import rlimits
from corral.platforms.posix.environment import environment
from corral.policy.model import Policy, Source
from corral.record import record, replace
from corral.supervisor.prepare import Subject, find_start_directory, target_environment

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

Layout = host_files.Layout
View = root_filesystem.View
SPECIFICATION = "1.0.2"
NAMESPACES = ("user", "mount", "pid", "network", "ipc", "uts", "cgroup")
MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/key-users",
    "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug",
    "/proc/scsi", "/sys/firmware",
)  # fmt: skip
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
OPTIONS = {
    "read": ["rbind", "rro", "rnosuid", "rnodev"],
    "write": ["rbind", "rw", "rnosuid", "rnodev"],
}
NO_NAMES = "a bundle cannot allow hosts: its network namespace is empty"


@record
class Bundle:
    config: Mapping[str, object]
    view: View
    controls: tuple[Held, ...]
    omitted: tuple[str, ...]  # secrets that the user must add to `process.env`


def build_bundle(
    subject: Subject, sources: Sequence[Source], *, cwd: str, variables: Mapping[str, str]
) -> Bundle:
    """Return the bundle. Raise one error for all controls that a runtime cannot enforce."""
    policy, rootless = subject.policy, bool(os.geteuid())
    layout = _survey(subject)
    controls = decide_for_engine(policy, _engine(policy, rootless=rootless), layout.machine)
    steps = tier_namespaces.compose(policy, subject.program, layout, ())
    view = next(step for step in steps if isinstance(step, View))
    state = tier_namespaces.STATE if policy.state else ""
    made = Composition(
        steps=steps,
        environment=environment(layout.home, tier_namespaces.TEMPORARY, state=state),
        home=layout.home,
        run="",
    )
    public = replace(policy, secret_names=())
    values = target_environment(public, subject.program, variables, made)
    process = {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": list(subject.program.argv),
        "env": [f"{name}={value}" for name, value in values],
        "cwd": find_start_directory(subject, sources, cwd) or layout.home,
        "capabilities": {kind: [] for kind in CAPABILITY_SETS},
        "rlimits": _rlimits(policy),
        "noNewPrivileges": True,
    }
    config = {
        "ociVersion": SPECIFICATION,
        "process": process,
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "corral",
        "mounts": _mounts(view),
        "linux": _linux(policy, layout, view, rootless=rootless),
    }
    return Bundle(config=config, view=view, controls=controls, omitted=policy.secret_names)


CAPABILITY_SETS = ("bounding", "effective", "permitted", "inheritable", "ambient")


def _survey(subject: Subject) -> Layout:
    layout = host_files.survey(subject.policy, subject.program, home=subject.home)
    written = {grant.path for grant in subject.policy.grants if grant.access == "write"}
    closed = [path for path, _, _ in layout.owners if path in written or not _is_public(path)]
    closed += [layout.state] if layout.state and layout.uid == 0 else []
    if closed:
        raise PolicyError(
            f"only root can use {', '.join(closed)}, but the bundle's target does not run as root",
            hint="export as the user that owns these files, or grant files that all users can read",
        )
    # A runtime needs a user with id 0 in the bundle. On the host, this user has the same id as the
    # target of `corral run`.
    return replace(layout, who=replace(layout.who, uid=0, gid=0))


def _is_public(path: str) -> bool:
    mode = os.stat(path).st_mode
    needed = 0o005 if stat.S_ISDIR(mode) else 0o004
    return mode & needed == needed


def _engine(policy: Policy, *, rootless: bool) -> Engine:
    """Return which controls a runtime enforces.

    Without root, a runtime has no cgroup, so it cannot enforce the limits that need one.
    """
    enforces = {
        "filesystem": ("mounts, read-only root", "no Landlock"),
        "network": ("empty network namespace", ""),
        "subprocess": ("seccomp", "the program may replace itself with another one (execve)"),
        "syscalls": ("seccomp", "converted from corral's own rules"),
        "tree": ("pid namespace", "`runc kill` ends it; processes may survive if runc dies"),
        "fds": ("RLIMIT_NOFILE", "inotify instances and System V objects have no limit"),
        "address_space": ("RLIMIT_AS", ""),
        "disk": ("sized tmpfs + RLIMIT_FSIZE", "the limit applies to each private directory"),
        "pids": ("RLIMIT_NPROC" if rootless else "cgroup pids", ""),
    }
    lacks = {
        "io": "an I/O limit in a bundle would need the device numbers of this host's disks",
        "timeout": "a runtime has no timeout",
        "memory": "a runtime without root has no cgroup",
        "cpu": "a runtime without root has no cgroup",
        "cpu_time": "RLIMIT_CPU limits one process only",
        "network": NO_NAMES,
    }
    if not rootless:
        enforces |= {"memory": ("cgroup memory", ""), "cpu": ("cgroup cpu", "")}
    if not policy.subprocess:
        enforces["cpu_time"] = ("RLIMIT_CPU", "")
    if policy.allow or policy.listen:
        del enforces["network"]
    hints = {
        "timeout": "leave the timeout out, and start the bundle with `timeout 5m runc run ...`",
        "network": "use `corral run` or `corral export kubernetes`, which can allow hosts",
        "memory": "export as root, or put the runtime itself into a systemd scope with MemoryMax",
    }
    return Engine(name="runc", enforces=enforces, lacks=lacks, hints=hints)


def _rlimits(policy: Policy) -> list[dict[str, object]]:
    values = rlimits.plan(policy.limits, count_init=False).values
    return [{"type": f"RLIMIT_{name}", "hard": top, "soft": top} for name, top in values]


def _mounts(view: View) -> list[dict[str, object]]:
    """Return the mounts, sorted so that each mount comes after the mounts that contain it."""
    inodes = max(1024, view.size // root_filesystem.BYTES_PER_INODE)
    sized = ["nosuid", "nodev", "mode=0700", f"size={view.size}", f"nr_inodes={inodes}"]
    mounts: dict[str, dict[str, object]] = {
        "/proc": _mount("/proc", "proc", "proc", ["nosuid", "noexec", "nodev"]),
        "/dev": _mount("/dev", "tmpfs", "tmpfs", ["nosuid", "mode=755", "size=65536k"]),
    }
    for path in view.private:
        has_links = any(link.startswith(f"{path}/") for link, _ in view.links)
        options = [*sized, "tmpcopyup"] if has_links else sized
        mounts[path] = _mount(path, "tmpfs", "tmpfs", options)
    for bind in view.binds:
        if bind.access != "device":  # a runtime creates the same devices itself
            mounts[bind.target] = _mount(bind.target, "bind", bind.source, OPTIONS[bind.access])
    return [mounts[path] for path in sorted(mounts, key=lambda path: (path.count("/"), path))]


def _mount(path: str, kind: str, source: str, options: list[str]) -> dict[str, object]:
    return {"destination": path, "type": kind, "source": source, "options": options}


def _linux(policy: Policy, layout: Layout, view: View, *, rootless: bool) -> dict[str, object]:
    who = layout.who
    hidden = [mask.path for mask in view.masks if mask.kind == "hide"]
    protected = [mask.path for mask in view.masks if mask.kind == "protect"]
    granted = any(grant.access == "socket" for grant in policy.grants)
    # With `own_unix_sockets` the filter allows all unix sockets. This is safe, because `compose`
    # refuses `own_unix_sockets` if the target could reach a socket of the host.
    sockets = granted or policy.own_unix_sockets
    return {
        "namespaces": [{"type": name} for name in NAMESPACES],
        "uidMappings": [{"containerID": 0, "hostID": who.outside_uid, "size": 1}],
        "gidMappings": [{"containerID": 0, "hostID": who.outside_gid, "size": 1}],
        "maskedPaths": [*MASKED, *hidden],
        "readonlyPaths": [*READ_ONLY, *protected],
        "seccomp": build_profile(
            layout.machine, subprocess=policy.subprocess, unix_sockets=sockets
        ),
        **({} if rootless else {"resources": _resources(policy)}),
    }


def _resources(policy: Policy) -> dict[str, object]:
    limits = policy.limits
    found: dict[str, object] = {"devices": [{"allow": False, "access": "rwm"}]}
    if limits.memory is not None:
        found["memory"] = {"limit": limits.memory, "swap": limits.memory}
    if limits.pids is not None:
        found["pids"] = {"limit": limits.pids}
    if limits.cpu is not None:
        found["cpu"] = {"quota": limits.cpu * cgroup.PERIOD // 1000, "period": cgroup.PERIOD}
    return found


def write_bundle(bundle: Bundle, directory: str, *, force: bool) -> None:
    def fill(fresh: str) -> None:
        os.mkdir(os.path.join(fresh, "rootfs"))
        _make_root(bundle.view, os.path.join(fresh, "rootfs"))
        with open(os.path.join(fresh, "config.json"), "w", encoding="utf-8") as file:
            json.dump(bundle.config, file, indent=2)
            file.write("\n")

    publish(directory, fill, names=("config.json", "rootfs"), force=force)


def _make_root(view: View, root: str) -> None:
    """Create the mount points, the links and the files of /etc in the bundle, because the runtime
    creates none of them.
    """
    for path in ("/proc", "/dev", "/sys", *view.private):
        os.makedirs(root + path, exist_ok=True)
    for bind in sorted(view.binds, key=lambda bind: bind.target.count("/")):
        if bind.access != "device" and not _is_below_bind(view, bind.target):
            _make_mount_point(root + bind.target, directory=os.path.isdir(bind.source))
    for path, text in view.files:
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        with open(root + path, "w", encoding="utf-8") as file:
            file.write(text)
    for path, target in view.links:
        if not path.startswith("/dev/") and not _is_below_bind(view, path):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(target, root + path)


def _is_below_bind(view: View, path: str) -> bool:
    return any(path.startswith(f"{bind.target}/") for bind in view.binds)


def _make_mount_point(path: str, *, directory: bool) -> None:
    os.makedirs(path if directory else os.path.dirname(path), exist_ok=True)
    if not directory:
        with open(path, "w", encoding="utf-8"):
            pass
