"""List the mechanisms that can enforce each control on Linux. The best one comes first."""

from __future__ import annotations

import sys

from corral.plan.model import NOTIFICATION, SAMPLING, UNIX_SCOPE, Option
from corral.platforms.posix import rlimits
from corral.policy.model import format_limit
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Chains
    from corral.policy.model import Policy

PID_NAMESPACE = "pid namespace"
NAMESPACES = ("user_namespaces", "mount_namespace", "pid_namespace")
BROKER = "socket broker"
REPLACEMENT = f"{BROKER} + replaced sockets"
UNCOUNTED = (
    "; not counted: memfds in transit through a socket, data in socket buffers, memory of a"
    " process that hides it (PR_SET_DUMPABLE), and, unless root runs corral, shared memory that is"
    " mapped but not touched"
)


def chains(policy: Policy) -> Chains:
    # RLIMIT_CPU limits each process separately. It limits the whole tree only if the target cannot
    # start other processes.
    alone = not policy.subprocess
    private_root, wall = "namespaces + pivot_root", ("landlock_wall", "seccomp")
    seen = _note_on_visibility(policy)
    return {
        "filesystem": (
            _verified(
                f"{private_root} + landlock + {UNIX_SCOPE}",
                *NAMESPACES,
                "landlock",
                "landlock_unix",
            ),
            _verified(f"{private_root} + landlock", *NAMESPACES, "landlock"),
            _verified(private_root, *NAMESPACES),
            _verified(f"landlock + {NOTIFICATION}", *wall, "task_count", note=seen),
            _verified("landlock", *wall, note=seen),
        ),
        "network": _network(policy),
        "subprocess": (
            _verified(f"seccomp + {NOTIFICATION}", "seccomp", "exec_cookie", "start_notices"),
            _verified("seccomp", "seccomp", "exec_cookie"),
        ),
        "syscalls": (_verified("seccomp", "seccomp"),),
        "tree": (
            _verified(PID_NAMESPACE, *NAMESPACES),
            Option(mechanism="guardian + signal scope", needs=("guardian", "landlock_scope")),
            Option(mechanism="guardian", needs=("guardian",), note=_note_on_signals(policy)),
        ),
        "memory": (_cgroup("memory"), *_sampled(policy, "memory"), *_per_process(policy)),
        "cpu": (_cgroup("cpu"), *_sampled(policy, "cpu")),
        "cpu_time": (_rlimit("RLIMIT_CPU"),) if alone else _sampled(policy, "cpu_time"),
        "pids": (
            _cgroup("pids"),
            Option(mechanism="RLIMIT_NPROC", needs=(*NAMESPACES, "nproc")),
            *_counted(policy),
            *_sampled(policy, "pids"),
        ),
        "io": _io(policy),
        "disk": (
            Option(
                mechanism="sized tmpfs + RLIMIT_FSIZE",
                needs=("private_space", *NAMESPACES),
                note=_note_on_disk(policy),
            ),
        ),
        "timeout": (Option(mechanism="supervisor"),),
        **{control: (_rlimit(f"RLIMIT_{name}"),) for control, name in rlimits.PER_PROCESS.items()},
    }


def _verified(mechanism: str, *needs: str, note: str = "") -> Option:
    return Option(mechanism=mechanism, needs=needs, status="verified", note=note)


def _cgroup(controller: str) -> Option:
    return Option(mechanism=f"cgroup {controller}", needs=(f"cgroup_{controller}",))


def _io(policy: Policy) -> tuple[Option, ...]:
    """Return the option that limits the I/O rate.

    The cgroup's file io.max has a limit for each disk. So return no option if neither /usr nor any
    grant is on a disk.
    """
    if policy.limits.io is None:
        return ()
    from corral.platforms.linux import block_devices

    found, without = block_devices.find_disks(policy)
    if not found:
        return ()
    note = f"does not limit {', '.join(without)}: no disk found" if without else ""
    return (replace(_cgroup("io"), note=note),)


def _sampled(policy: Policy, control: str) -> tuple[Option, ...]:
    """Return the sampling option for `control` if the user states this limit.

    Do not sample for default limits, because sampling keeps the processor awake.
    """
    if control not in policy.stated:
        return ()
    note = "the tree is measured ten times a second, and killed above the limit"
    if control == "cpu":
        note = "the tree is stopped and continued repeatedly to keep it within its share"
    note += UNCOUNTED if control == "memory" else ""
    return (Option(mechanism=SAMPLING, needs=("sampling",), status="cooperative", note=note),)


def _counted(policy: Policy) -> tuple[Option, ...]:
    """Return the option in which the supervisor allows or denies each new process and thread.

    A fork then waits until the supervisor has received its system call. If the process gets a
    signal during this wait, the fork fails with EINTR, unless the signal is blocked or its handler
    has SA_RESTART. Common libraries block signals, but dash does not: a script with 400 jobs, 20 at
    a time, failed in each of nine runs with the limit, and in none without it. So if the target may
    start processes, use this option only for a limit that the user states.
    """
    if policy.subprocess and "pids" not in policy.stated:
        return ()
    note = "in a program that catches signals without SA_RESTART, as dash does, a fork can fail"
    note += " with EINTR"
    return (
        Option(
            mechanism=f"seccomp {NOTIFICATION}",
            needs=("seccomp", "task_count"),
            note=note if policy.subprocess else "",
        ),
    )


def _per_process(policy: Policy) -> tuple[Option, ...]:
    """Return the option that limits the memory of each process separately.

    Use this option only for a default limit. A limit that the user states must apply to the whole
    tree.
    """
    if policy.limits.memory is None or "memory" in policy.stated:
        return ()
    held = format_limit("memory", max(policy.limits.memory, rlimits.DATA_FLOOR))
    note = f"each process is limited to {held}, but all of them together are not"
    note += "; to limit their total too, which corral then samples, add `--max-memory SIZE`"
    return (Option(mechanism="RLIMIT_DATA", needs=("rlimits",), status="degraded", note=note),)


def _rlimit(name: str) -> Option:
    return Option(mechanism=name, needs=("rlimits",))


def _network(policy: Policy) -> tuple[Option, ...]:
    asked = {"gateway": policy.allow, "inward": policy.listen}
    needs = [name for name, stated in asked.items() if stated]
    mechanism, note = " + ".join(("network namespace", *needs)), _note_on_gateway(policy)
    namespace = _verified(mechanism, "network_namespace", *needs, note=note)
    if not needs and not any(grant.access == "socket" for grant in policy.grants):
        return namespace, _verified("seccomp socket families", "seccomp")
    note = _note_on_broker(policy)
    lost = "socket options and epoll registrations from before a connect are lost"
    broker = _verified(BROKER, "seccomp", "socket_broker", "same_socket", note=note)
    return (
        namespace,
        broker,
        replace(broker, mechanism=REPLACEMENT, needs=broker.needs[:2], note=f"{note}; {lost}"),
    )


def _note_on_broker(policy: Policy) -> str:
    text = "the target has no loopback of its own, and sends no datagrams except name lookups"
    return "; ".join(filter(None, (_note_on_gateway(policy), text)))


def _note_on_gateway(policy: Policy) -> str:
    if not policy.allow:
        return ""
    text = "the target may use domain fronting, and reach sites that share an allowed address"
    if any(item.startswith("*.") for item in policy.allow):
        text += "; every name that is looked up under a wildcard reaches that zone's name servers"
    return text


def _note_on_visibility(policy: Policy) -> str:
    text = "names and metadata of the host's files can be seen"
    text = f"{text}, and so can its processes" if policy.subprocess else text
    return f"{text}; the user's kernel quotas are shared with the host"


def _note_on_signals(policy: Policy) -> str:
    return "the target cannot signal its own processes" if policy.subprocess else ""


def _note_on_disk(policy: Policy) -> str:
    granted = policy.state or any(grant.access == "write" for grant in policy.grants)
    return "write grants and state are not size-limited" if granted else ""
