"""Divide the controls of a policy between a pod and corral inside the pod.

corral cannot create namespaces in a pod, so it uses Landlock, seccomp and the socket broker there.
The pod enforces the limits on memory, CPU and disk. Nothing enforces an I/O limit. corral enforces
all other controls.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence

from corral.errors import PolicyError
from corral.export.holding import INSIDE
from corral.export.network_policy import has_names
from corral.paths.posix import is_inside
from corral.plan.decide import decide
from corral.plan.host import Finding, Host
from corral.plan.model import Held, Option
from corral.platforms.linux import options
from corral.policy.merge import PATHS, merge, resolve_paths
from corral.policy.model import CONTROLS, Policy, Source, format_limit
from corral.record import record, replace
from corral.safe_text import shell_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Chains
    from corral.policy.model import Access

# The capabilities that corral has in a hardened pod without namespaces. The export cannot probe the
# pod, so it assumes them. The pod's kernel must have all Landlock features that corral uses.
PROVEN = (
    "landlock_wall", "landlock_scope", "seccomp", "exec_cookie", "start_notices", "guardian",
    "rlimits", "sampling", "socket_broker", "task_count",
)  # fmt: skip
HELD_BY_POD = ("memory", "cpu", "disk")
MEMORY_NOTE = "for all sessions together, plus 64 MiB for corral itself"
NETWORK_NOTE = (
    "allows names at public addresses; for a name inside the cluster, also allow its network"
)
DISK_NOTE = "the kubelet checks this from time to time, and evicts a pod that exceeds it"


@record
class PodPath:
    """A path that the policy grants in the pod, and the volume that is mounted there."""

    path: str
    access: Access
    volume: str


@record
class PodPolicy:
    """A policy for a pod.

    The granted paths are in `paths`. They cannot be in `policy`, which contains only paths that
    exist on this machine.
    """

    policy: Policy
    paths: tuple[PodPath, ...]
    controls: tuple[Held, ...]


def make_pod_policy(
    sources: Sequence[Source], volumes: Mapping[str, str], *, home: str, cwd: str
) -> PodPolicy:
    """Merge the sources of a policy for a pod.

    Raise one error for all controls that cannot be enforced in a pod.
    """
    paths = _map_paths(resolve_paths(sources, home, cwd), volumes)
    no_paths = {name: None for name, _, _ in PATHS}
    without = [replace(one, manifest=replace(one.manifest, **no_paths)) for one in sources]
    policy = merge(without, home=home, cwd=cwd)
    _refuse_unexported(policy)
    proven = [Finding(capability=name, status="proven", evidence="") for name in PROVEN]
    io = Finding(capability="io", status="absent", evidence="a pod cannot limit the I/O rate")
    host = Host(system="linux", machine="", findings=(*proven, io))
    controls = _name_paths(decide(policy, host, _chains(policy)), paths)
    return PodPolicy(policy=policy, paths=paths, controls=controls)


def _refuse_unexported(policy: Policy) -> None:
    """Refuse MCP rules and `own_unix_sockets`, because an export supports neither."""
    if policy.mcp is not None:
        raise PolicyError(
            "mcp: an export does not contain the MCP guard",
            hint="leave out the mcp keys, --tools and --pins",
        )
    if policy.own_unix_sockets:
        raise PolicyError(
            "own_unix_sockets needs namespaces, which a pod does not have", hint="leave it out"
        )


def _map_paths(
    granted: Iterable[tuple[Source, str, Access, str]], volumes: Mapping[str, str]
) -> tuple[PodPath, ...]:
    found: dict[str, PodPath] = {}
    unmapped: list[str] = []
    for _, where, access, path in granted:
        if access == "socket":
            raise PolicyError(
                f"{where}: a socket of the host does not exist in a pod",
                hint="leave it out, and reach the service through `network.allow`",
            )
        if path not in volumes:
            unmapped.append(path)
        elif path not in found or access == "write":
            found[path] = PodPath(path=path, access=access, volume=volumes[path])
    if unmapped:
        raise PolicyError(
            "the pod needs a --volume for each of these granted paths: "
            + ", ".join(dict.fromkeys(unmapped)),
            hint=" ".join(f"--volume {word}=claim:NAME" for word in _quote_all(unmapped))
            + "; instead of claim:NAME you can write configmap:NAME or emptydir",
        )
    if spare := sorted(set(volumes) - set(found)):
        raise PolicyError(
            f"--volume names paths that the policy does not grant: {', '.join(spare)}",
            hint=" ".join(f"--read {word}" for word in _quote_all(spare))
            + ", or leave the volume out",
        )
    _refuse_nested(found)
    return tuple(found.values())


def _quote_all(paths: Sequence[str]) -> list[str]:
    return [shell_word(path) for path in dict.fromkeys(paths)]


def _refuse_nested(found: Mapping[str, PodPath]) -> None:
    for outer in found.values():
        inner = [path for path in found if path != outer.path and is_inside(path, outer.path)]
        if inner and outer.access == "read":
            raise PolicyError(
                f"{outer.path} is read-only, so no volume can be mounted at {', '.join(inner)}",
                hint="grant only one of them, or paths that do not contain each other",
            )


def _name_paths(controls: Sequence[Held], paths: Sequence[PodPath]) -> tuple[Held, ...]:
    words = ", ".join(f"{path.access} {path.path}" for path in paths)
    return tuple(
        replace(held, asked=words) if held.control == "filesystem" and words else held
        for held in controls
    )


def _chains(policy: Policy) -> Chains:
    """Return the possible mechanisms for each control: first the pod's own limit, then the
    mechanisms that corral uses without namespaces.
    """
    if TYPE_CHECKING and sys.platform != "linux":
        # This never runs. It makes type checkers for other systems skip the rest, because they
        # cannot see Linux's modules.
        raise AssertionError
    inside = options.chains(replace(policy, limits=replace(policy.limits, io=None)))
    ends = "for the pod, which is not restarted" if policy.listen else "for each session"
    notes = {"network": NETWORK_NOTE if has_names(policy) else "", "timeout": ends}
    engine = {
        "memory": Option(mechanism="resources.limits.memory", note=MEMORY_NOTE),
        "cpu": Option(mechanism="resources.limits.cpu", note="for all sessions together"),
        "disk": Option(mechanism="emptyDir.sizeLimit, ephemeral-storage", note=DISK_NOTE),
        "io": Option(mechanism="", needs=("io",)),
    }
    return {
        control: (
            *([engine[control]] if control in engine else ()),
            *(_move_inside(one, notes.get(control, "")) for one in inside.get(control, ())),
        )
        for control in CONTROLS
    }


def _move_inside(option: Option, note: str) -> Option:
    note = "; ".join(text for text in (option.note, note) if text)
    return replace(option, mechanism=INSIDE + option.mechanism, note=note)


def policy_document(pod: PodPolicy) -> dict[str, object]:
    """Return the policy file for corral inside the pod. The limits that the pod enforces are set to
    "none".
    """
    policy = pod.policy
    limits = {
        name: format_limit(name, getattr(policy.limits, name))
        for name in policy.stated
        if hasattr(policy.limits, name)
    }
    limits |= dict.fromkeys(HELD_BY_POD, "none")
    counts = {name: int(text) for name, text in limits.items() if text.isdigit()}
    kept = {
        access: [one.path for one in pod.paths if one.access == access]
        for access in ("read", "write")
    }
    return {
        "version": 1,
        "limits": dict(sorted({**limits, **counts}.items())),
        "network": {
            "allow": list(policy.allow),
            "listen": list(policy.listen),
            # A Service connects from another machine, so the server must not listen only on
            # loopback. The network policy decides which pods may connect.
            "listen_everywhere": bool(policy.listen),
        },
        "filesystem": {**kept, "state": policy.state},
        "subprocess": {"allow": policy.subprocess},
        "environment": {
            "pass": list(policy.pass_names),
            "set": dict(policy.set_values),
            "secrets": list(policy.secret_names),
        },
        "degrade": {"allow": sorted(policy.degrade)},
    }


def format_policy(pod: PodPolicy) -> str:
    return json.dumps(policy_document(pod), indent=2) + "\n"
