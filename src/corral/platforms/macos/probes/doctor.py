"""What `corral doctor` says of a Mac, a line a capability."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.host import Finding, Host

    Line = tuple[str, str, Finding | None]

WALLS = ("Filesystem", "Network")
ELSEWHERE = ("Cgroups", "Network namespaces", "Seccomp")
LABELS = {
    "door": "Network allowlist, by a proxy",
    "nproc": "No second process by rlimit",
    "watcher": "Tree kill",
    "sampling": "Sampling",
    "jetsam": "Memory limit of one process",
}
ADVICE = "Recommendation: Use Linux VM for strict security requirements"


def lines(host: Host) -> list[Line]:
    """(status, words, the finding whose evidence and hint belong to them)."""
    told = [_line(host.finding("rlimits"), "Rlimits: supported", "Rlimits: NOT available")]
    told += [("absent", f"{name}: NOT available (Linux only)", None) for name in ELSEWHERE]
    wall = host.finding("seatbelt")
    told.append(_line(wall, "Seatbelt: supported", "Seatbelt: NOT available"))
    for name in WALLS:
        told.append((wall.status, f"{name} isolation: {_supported(wall)} on macOS", None))
    for name, label in LABELS.items():
        told.append(_line(host.finding(name), f"{label}: supported", f"{label}: NOT available"))
    keeper = host.finding("watcher")
    told.append((keeper.status, f"Timeout enforcement: {_supported(keeper)}", None))
    return [*told, ("advice", ADVICE, None)]


def _supported(finding: Finding) -> str:
    return "supported" if finding.status == "proven" else "NOT supported"


def _line(finding: Finding, held: str, lost: str) -> Line:
    if finding.status == "proven":
        return "proven", held, finding
    return "absent", lost, finding
