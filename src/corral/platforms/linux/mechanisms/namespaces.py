"""New namespaces: user, mount, pid, network, ipc and uts by the clone that makes init, cgroup
after.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Place
    from corral.platforms.steps import Scene

FLAGS = {
    "user": abi.CLONE_NEWUSER,
    "mnt": abi.CLONE_NEWNS,
    "pid": abi.CLONE_NEWPID,
    "net": abi.CLONE_NEWNET,
    "ipc": abi.CLONE_NEWIPC,
    "uts": abi.CLONE_NEWUTS,
}


@record
class Namespaces:
    place: Place = "birth"
    names: tuple[str, ...] = ("user", "mnt", "pid", "net", "ipc", "uts")

    def describe(self) -> str:
        return f"new namespaces: {', '.join(self.names)}"

    def flags(self) -> int:
        return sum(FLAGS[name] for name in self.names)


@record
class CgroupNamespace:
    """Its root is the cgroup that init stands in, so it is made once init has been placed."""

    place: Place = "init"

    def describe(self) -> str:
        return "new namespace: cgroup"


@record
class Hostname:
    """The host's name is the user's business."""

    name: str
    place: Place = "init"

    def describe(self) -> str:
        return f"host name {self.name}"


def apply(step: Namespaces | CgroupNamespace | Hostname, scene: Scene) -> None:
    """In the supervisor, remember where the host stands; in init, leave the rest behind."""
    match step:
        case Hostname():
            abi.sethostname(step.name)
        case CgroupNamespace():
            scene.namespaces["cgroup"] = _identity("cgroup")
            abi.unshare(abi.CLONE_NEWCGROUP)
        case Namespaces():
            scene.namespaces.update({name: _identity(name) for name in step.names})


def verify(step: Namespaces | CgroupNamespace | Hostname, scene: Scene) -> None:
    if not isinstance(step, Namespaces):
        return
    shared = [name for name in scene.namespaces if _identity(name) == scene.namespaces[name]]
    if shared:
        raise OSError(0, f"still in the host's namespaces: {', '.join(shared)}")


def _identity(name: str) -> str:
    return os.readlink(f"/proc/self/ns/{name}")
