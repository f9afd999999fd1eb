"""Create the sandbox's namespaces.

The clone that starts init creates the user, mount, pid, network, ipc and uts namespaces. Init
creates the cgroup namespace later.
"""

from __future__ import annotations

import os

from corral.abi import linux as abi
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage

FLAGS = {
    "user": abi.CLONE_NEWUSER,
    "mnt": abi.CLONE_NEWNS,
    "pid": abi.CLONE_NEWPID,
    "net": abi.CLONE_NEWNET,
    "ipc": abi.CLONE_NEWIPC,
    "uts": abi.CLONE_NEWUTS,
}


@record
class HostNamespaces:
    """The links in /proc that identify the host's namespaces, by kind.

    In the sandbox each link must be different.
    """

    links: dict[str, str]


@record
class Namespaces:
    name = "namespaces"
    stage: Stage = "clone"

    def describe(self) -> str:
        return f"new namespaces: {', '.join(FLAGS)}"

    def flags(self) -> int:
        return sum(FLAGS.values())

    def apply(self, results: Results) -> None:
        results.add(HostNamespaces(links={name: _link(name) for name in FLAGS}))

    def verify(self, results: Results) -> None:
        _check_left(results.get(HostNamespaces).links)


@record
class HostCgroupNamespace:
    link: str


@record
class CgroupNamespace:
    """Creates the cgroup namespace.

    The namespace's root is init's current cgroup, so init must already be in the run's own cgroup.
    """

    name = "cgroup_namespace"
    stage: Stage = "init"

    def describe(self) -> str:
        return "new namespace: cgroup"

    def apply(self, results: Results) -> None:
        results.add(HostCgroupNamespace(link=_link("cgroup")))
        abi.unshare(abi.CLONE_NEWCGROUP)

    def verify(self, results: Results) -> None:
        _check_left({"cgroup": results.get(HostCgroupNamespace).link})


@record
class Hostname:
    name = "hostname"
    hostname: str
    stage: Stage = "init"
    verify = unverified

    def describe(self) -> str:
        return f"host name {self.hostname}"

    def apply(self, _results: Results) -> None:
        abi.sethostname(self.hostname)


def _check_left(links: dict[str, str]) -> None:
    shared = [name for name, link in links.items() if _link(name) == link]
    if shared:
        raise OSError(0, f"the process is still in the host's namespaces: {', '.join(shared)}")


def _link(name: str) -> str:
    return os.readlink(f"/proc/self/ns/{name}")
