"""What `corral doctor` says of a Linux host, a line a capability."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.host import Finding, Host

    Line = tuple[str, str, Finding | None]

LABELS = {
    "user_namespaces": "User namespaces",
    "mount_namespace": "Mount namespaces",
    "pid_namespace": "PID namespaces",
    "network_namespace": "Network namespaces",
    "landlock": "Landlock",
    "landlock_wall": "Landlock as the only wall",
    "landlock_scope": "Landlock signal scope",
    "guardian": "Guardian",
    "seccomp": "Seccomp",
    "gateway": "Network allowlist",
    "inward": "Ports on host loopback",
    "exec_cookie": "Subprocess blocking",
    "rlimits": "Rlimits",
    "nproc": "Process limit",
    "sampling": "Sampling",
}
CGROUP = "cgroup_"
TIERS = (
    ("user_namespaces", "mount_namespace", "pid_namespace", "network_namespace", "seccomp"),
    ("landlock_wall", "guardian", "seccomp"),
)
"""What `run` needs for its walls, with namespaces or without."""
WORDS = {"rlimits": "supported", "nproc": "supported", "exec_cookie": "supported"}


def lines(host: Host) -> list[Line]:
    """(status, words, the finding whose evidence and hint belong to them)."""
    told = _cgroup_lines([item for item in host.findings if CGROUP in item.capability])
    told += [
        (item.status, _words(item), item) for item in host.findings if CGROUP not in item.capability
    ]
    if not any(all(host.has(name) for name in tier) for tier in TIERS):
        text = "Recommendation: the walls cannot be put up here, so `corral run` refuses"
        told.append(("advice", text, None))
    return told


def _cgroup_lines(findings: list[Finding]) -> list[Line]:
    """Four findings, one subject: what holds, and what does not and why."""
    held = [item for item in findings if item.status == "proven"]
    lost = [item for item in findings if item.status != "proven"]
    names = ", ".join(item.capability.removeprefix(CGROUP) for item in lost)
    why = lost[0].evidence if lost else ""
    if not held:
        return [("absent", f"Cgroups v2: NOT available ({why})", None)] if lost else []
    place = held[0].evidence.partition(": ")[0]
    lines: list[Line] = [("proven", f"Cgroups v2: available {place}", None)]
    if lost:
        lines.append(("absent", f"Cgroups delegation: limited ({names}: {why})", None))
    return lines


def _words(finding: Finding) -> str:
    label = LABELS.get(finding.capability, finding.capability)
    if finding.status != "proven":
        return f"{label}: NOT available ({finding.evidence})"
    return f"{label}: {WORDS.get(finding.capability, 'available')}"
