"""What `corral doctor` says of a Mac, a line a capability."""

import sys
from typing import TYPE_CHECKING

from corral.plan.host import Finding, Host
from corral.platforms.doctor_lines import Line, format_lines
from corral.platforms.macos.probes import host as probes

assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers

WALLS = ("Filesystem", "Network")
LINUX_ONLY = ("Cgroups", "Network namespaces", "Seccomp")
ADVICE = "Recommendation: Use Linux VM for strict security requirements"


def lines(host: Host) -> list[Line]:
    """Return the lines in their fixed order, with those that a user of Linux looks for."""

    def of(*names: str) -> list[Line]:
        return format_lines(map(host.finding, names), probes.LABELS, show_evidence=False)

    wall, watcher = host.finding("seatbelt"), host.finding("watcher")
    return [
        *of("rlimits"),
        *(("absent", f"{name}: NOT available (Linux only)", None) for name in LINUX_ONLY),
        *of("seatbelt"),
        *((wall.status, f"{name} isolation: {_support(wall)} on macOS", None) for name in WALLS),
        *of("door", "nproc", "watcher", "sampling", "jetsam"),
        (watcher.status, f"Timeout enforcement: {_support(watcher)}", None),
        ("advice", ADVICE, None),
    ]


def _support(finding: Finding) -> str:
    return "supported" if finding.status == "proven" else "NOT supported"
