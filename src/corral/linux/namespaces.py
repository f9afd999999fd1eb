"""New user, mount, pid, network, ipc, uts and cgroup namespaces, all made by the clone that makes init."""

from __future__ import annotations

import sys

import os

from corral.abi import linux as abi
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan import Place
    from corral.posix.enter import Scene

FLAGS = {
    "user": abi.CLONE_NEWUSER,
    "mnt": abi.CLONE_NEWNS,
    "pid": abi.CLONE_NEWPID,
    "net": abi.CLONE_NEWNET,
    "ipc": abi.CLONE_NEWIPC,
    "uts": abi.CLONE_NEWUTS,
    "cgroup": abi.CLONE_NEWCGROUP,
}


@record
class Namespaces:
    place: Place = "birth"
    names: tuple[str, ...] = tuple(FLAGS)

    def describe(self) -> str:
        return f"new namespaces: {', '.join(self.names)}"

    def flags(self) -> int:
        return sum(FLAGS[name] for name in self.names)


@record
class Hostname:
    """The host's name is the user's business."""

    name: str
    place: Place = "init"

    def describe(self) -> str:
        return f"host name {self.name}"


def apply(step: Namespaces | Hostname, scene: Scene) -> None:
    """In the supervisor, remember where the host stands; in init, take a name."""
    match step:
        case Hostname():
            abi.sethostname(step.name)
        case Namespaces():
            scene.namespaces.update({name: _identity(name) for name in step.names})


def verify(step: Namespaces | Hostname, scene: Scene) -> None:
    if isinstance(step, Hostname):
        return
    shared = [name for name in step.names if _identity(name) == scene.namespaces[name]]
    if shared:
        raise OSError(0, f"still in the host's namespaces: {', '.join(shared)}")


def _identity(name: str) -> str:
    return os.readlink(f"/proc/self/ns/{name}")
