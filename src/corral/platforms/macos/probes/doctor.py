"""Write the lines of `corral doctor` for a Mac."""

import sys
from typing import TYPE_CHECKING

from corral.plan.host import Finding, Host
from corral.platforms.doctor_lines import Line, add_basis, format_lines
from corral.platforms.macos.probes import host as probes

assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers

WALLS = ("Filesystem", "Network")
RUNTIMES = ("starts python", "starts node")
LINUX_ONLY = ("Cgroups", "Network namespaces", "Seccomp")
PROCESSES = "Processes: limited at start by RLIMIT_NPROC; sampled only if the policy sets pids"
ADVICE = "Recommendation: Use Linux VM for strict security requirements"


def lines(host: Host) -> list[Line]:
    """Return the lines. Mechanisms that only Linux has are shown as absent."""

    def of(*names: str) -> list[Line]:
        return format_lines(map(host.finding, names), probes.LABELS, show_evidence=False)

    wall, watcher = host.finding("seatbelt"), host.finding("watcher")
    found = [
        *of("rlimits"),
        *(("absent", f"{name}: NOT available (Linux only)", None) for name in LINUX_ONLY),
        *of("seatbelt"),
        *((wall.status, f"{name} isolation: {_support(wall)} on macOS", None) for name in WALLS),
        *of(*(name for name in RUNTIMES if host.finding(name).status != "unknown")),
        *of("disclaim", "loopback_proxy", "nproc", "watcher", "marker", "sampling", "jetsam"),
        ("advice", PROCESSES, None),
        (watcher.status, f"Timeout enforcement: {_support(watcher)}", None),
        ("advice", ADVICE, None),
    ]
    return add_basis(found, host.system)


def _support(finding: Finding) -> str:
    return "supported" if finding.status == "proven" else "NOT supported"
