"""Find out what forbids namespaces here.

It can be a container engine, another sandbox around corral, AppArmor or a sysctl.
"""

import os
import sys
from typing import TYPE_CHECKING

from corral.abi import linux as abi
from corral.platforms.linux.mechanisms import seccomp
from corral.record import record
from corral.safe_text import printable

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.host import Host
    from corral.platforms.doctor_lines import Line

MARKS = (("/run/.containerenv", "podman"), ("/.dockerenv", "Docker"))
STORES = (
    (b"/docker/", "Docker"),
    (b"containerd", "containerd"),
    (b"/containers/storage", "podman"),
)
"""Pairs (part of a path, container engine). The engine made the container if the path of the root
directory's layers contains this part.
"""
APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
SWITCHES = (("user.max_user_namespaces", b"0"), ("kernel.unprivileged_userns_clone", b"0"))
SYSCTLS = "allow unprivileged user namespaces"
SPACE = {
    "Kubernetes": "set `emptyDir.sizeLimit` on the volume at /tmp",
    "": "the engine can limit the space of the container: `--tmpfs /tmp:size=1g`, `--storage-opt "
    "size=1g` (Docker, podman), `emptyDir.sizeLimit` (Kubernetes)",
}


@record
class Surroundings:
    """Says what prevents namespaces on this host.

    `label` is the name of the obstacle, and `forbids` describes it. Both are "" if corral does not
    know the obstacle. `hint` says how to make namespaces available, and `space_hint` says how to
    limit disk space.
    """

    label: str
    forbids: str
    hint: str
    space_hint: str


def find() -> Surroundings:
    engine = find_engine()
    if engine or b"Seccomp:\t2" in _read("/proc/self/status"):
        around = "container" if engine else "sandbox"
        # In one of corral's own sandboxes a filter denies TIOCSTI already. The probe of seccomp
        # fails there, because it cannot show that its own filter denies TIOCSTI. So do not name
        # seccomp as a wall there.
        inside = "" if seccomp.is_filtered() else f"; inside, {_walls_left()}"
        return Surroundings(
            label=f"Container ({engine})" if engine else "Outer sandbox",
            forbids=f"its {'engine' if engine else 'seccomp filter'} forbids namespaces",
            hint=f"start corral outside this {around}{inside}",
            space_hint=SPACE.get(engine, SPACE[""]),
        )
    if os.geteuid() and _read_sysctl(APPARMOR) == b"1":
        return Surroundings(
            label="AppArmor",
            forbids=(
                f"it does not let programs without a profile create namespaces ({APPARMOR} = 1)"
            ),
            hint=f"without namespaces, {_walls_left()}",
            space_hint="AppArmor forbids the mounts that a limit needs",
        )
    for name, value in SWITCHES:
        if _read_sysctl(name) == value:
            hint = f"{SYSCTLS} (sysctl {name} is {value.decode()} here)"
            forbids = f"{name} = {value.decode()} forbids namespaces"
            return Surroundings(label="Sysctl", forbids=forbids, hint=hint, space_hint=hint)
    return Surroundings(label="", forbids="", hint=SYSCTLS, space_hint=SYSCTLS)


def _walls_left() -> str:
    """Describe which walls remain on this host without namespaces.

    Only the version of Landlock matters, because Landlock restricts files. Network and signals are
    restricted by seccomp.
    """
    try:
        version = abi.landlock_abi()
    except OSError:
        return "the kernel has no Landlock, which would be the wall (Linux 6.2 or later)"
    if version < abi.LANDLOCK_TRUNCATE_ABI:
        return (
            f"Landlock (ABI {version} here) cannot be the wall, because it does not control "
            "truncation; Linux 6.2 or later does"
        )
    return "Landlock and seccomp are the walls"


def find_engine() -> str:
    """Return the name of the container engine, or "" if corral does not run in a container."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "Kubernetes"
    # podman, systemd-nspawn and LXC set the variable `container`.
    if name := os.environ.get("container"):  # noqa: SIM112 - lower case
        return printable(name)
    for path, name in MARKS:
        if os.path.exists(path):
            return name
    lines = _read("/proc/self/mountinfo").splitlines()
    roots = [line for line in lines if line.split(b" ", 5)[4:5] == [b"/"]]
    found = [name for part, name in STORES for line in roots if part in line]
    return found[0] if found else ""


def doctor_lines(host: "Host") -> list["Line"]:
    if host.has("mount_namespace") or not host.has("landlock_wall"):
        return []
    found = find()
    if not found.forbids:
        return []
    costs = [
        "names and metadata of files stay visible",
        "a grant that contains secrets is refused",
        "disk space is not limited",
    ]
    if not host.has("socket_broker"):
        costs.append("`network.allow` and `network.listen` are refused")
    return [("absent", f"{found.label}: {found.forbids}, so {', '.join(costs)}", None)]


def _read_sysctl(name: str) -> bytes:
    return _read("/proc/sys/" + name.replace(".", "/")).strip()


def _read(path: str) -> bytes:
    try:
        return abi.read_file(path)
    except OSError:
        return b""
