"""The mechanisms that can enforce each control on Linux, best first."""

from __future__ import annotations

import sys

from corral.plan.model import SAMPLING, Option
from corral.platforms.posix import rlimits
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Chains
    from corral.policy.model import Policy

PID_NAMESPACE = "pid namespace"
NAMESPACES = ("user_namespaces", "mount_namespace", "pid_namespace")
UNCOUNTED = (
    "; not counted: memfds on their way through a socket, memory of a process that hides it"
    " (PR_SET_DUMPABLE), and, unless root runs corral, shared memory that is mapped but not touched"
)


def chains(policy: Policy) -> Chains:
    alone = not policy.subprocess  # one process: a limit of the process is a limit of the tree
    return {
        "filesystem": (
            Option(
                mechanism="namespaces + pivot_root + landlock",
                needs=(*NAMESPACES, "landlock"),
                status="verified",
            ),
            Option(mechanism="namespaces + pivot_root", needs=NAMESPACES, status="verified"),
            Option(
                mechanism="landlock",
                needs=("landlock_wall", "seccomp"),
                status="verified",
                note=_note_on_visibility(policy),
            ),
        ),
        "network": _network(policy),
        "subprocess": (
            Option(mechanism="seccomp", needs=("seccomp", "exec_cookie"), status="verified"),
        ),
        "syscalls": (Option(mechanism="seccomp", needs=("seccomp",), status="verified"),),
        "tree": (
            Option(mechanism=PID_NAMESPACE, needs=NAMESPACES, status="verified"),
            Option(mechanism="guardian + signal scope", needs=("guardian", "landlock_scope")),
            Option(mechanism="guardian", needs=("guardian",), note=_note_on_signals(policy)),
        ),
        "memory": (_cgroup("memory"), *_sampled(policy, "memory")),
        "cpu": (_cgroup("cpu"), *_sampled(policy, "cpu")),
        "cpu_time": (_rlimit("RLIMIT_CPU"),) if alone else _sampled(policy, "cpu_time"),
        "pids": (
            _cgroup("pids"),
            Option(mechanism="RLIMIT_NPROC", needs=(*NAMESPACES, "nproc")),
            *_sampled(policy, "pids"),
        ),
        "io": _io(policy),
        "disk": (
            Option(
                mechanism="sized tmpfs + RLIMIT_FSIZE", needs=NAMESPACES, note=_note_on_disk(policy)
            ),
        ),
        "timeout": (Option(mechanism="supervisor"),),
        **{control: (_rlimit(f"RLIMIT_{name}"),) for control, name in rlimits.PER_PROCESS.items()},
    }


def _cgroup(controller: str) -> Option:
    return Option(mechanism=f"cgroup {controller}", needs=(f"cgroup_{controller}",))


def _io(policy: Policy) -> tuple[Option, ...]:
    """Limits are per disk: where the target's files are on none, nothing can be limited."""
    if policy.limits.io is None:
        return ()
    from corral.platforms.linux import block_devices

    found, without = block_devices.find_disks(policy)
    if not found:
        return ()
    note = f"not for {', '.join(without)}, which no disk is behind" if without else ""
    return (replace(_cgroup("io"), note=note),)


def _sampled(policy: Policy, control: str) -> tuple[Option, ...]:
    """Sampling costs wake-ups, so only a limit that was stated is enforced that way."""
    if control not in policy.stated:
        return ()
    note = "the tree is looked at ten times a second and killed when it is over"
    note += UNCOUNTED if control == "memory" else ""
    return (Option(mechanism=SAMPLING, needs=("sampling",), status="cooperative", note=note),)


def _rlimit(name: str) -> Option:
    return Option(mechanism=name, needs=("rlimits",))


def _network(policy: Policy) -> tuple[Option, ...]:
    if not (policy.allow or policy.listen):
        return (
            Option(mechanism="network namespace", needs=("network_namespace",), status="verified"),
            Option(mechanism="seccomp socket families", needs=("seccomp",), status="verified"),
        )
    asked = {"gateway": policy.allow, "inward": policy.listen}
    needs = [name for name, stated in asked.items() if stated]
    return (
        Option(
            mechanism="network namespace + " + " + ".join(needs),
            needs=("network_namespace", *needs),
            status="verified",
            note=_note_on_gateway(policy),
        ),
    )


def _note_on_gateway(policy: Policy) -> str:
    if not policy.allow:
        return ""
    text = "domain fronting and sites that share an address with an allowed one stay possible"
    if any(item.startswith("*.") for item in policy.allow):
        text += "; names looked up under a wildcard reach whoever runs that zone"
    return text


def _note_on_visibility(policy: Policy) -> str:
    text = "names and metadata of the host's files can be seen"
    text = f"{text}, and its processes" if policy.subprocess else text
    return f"{text}; the kernel's quotas of the user are shared with the host"


def _note_on_signals(policy: Policy) -> str:
    return "the target cannot signal its own processes" if policy.subprocess else ""


def _note_on_disk(policy: Policy) -> str:
    granted = policy.state or any(grant.access == "write" for grant in policy.grants)
    return "write grants and state are not size-limited" if granted else ""
