"""Describe the host: which capabilities its probes have found.

A capability is proven only if a probe, in a disposable child process, saw an act fail with the
capability *and* succeed without it. Otherwise it is absent or unknown, and unknown counts as
absent. No finding is derived from a version number.
"""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Status = Literal["proven", "absent", "unknown"]
    System = Literal["linux", "darwin", "windows"]


@record
class Finding:
    """The result of one probe.

    `evidence` is what the probe observed, and `hint` is advice for the user.
    """

    capability: str
    status: Status
    evidence: str
    hint: str = ""


@record
class Host:
    """A machine: its system, its processor type and the findings of all probes."""

    system: System
    machine: str
    findings: tuple[Finding, ...] = ()

    def finding(self, capability: str) -> Finding:
        """Return the finding for a capability, with the status "unknown" if it was not probed."""
        for item in self.findings:
            if item.capability == capability:
                return item
        return Finding(capability=capability, status="unknown", evidence="not probed")

    def has(self, capability: str) -> bool:
        """Return whether a capability is proven."""
        return self.finding(capability).status == "proven"
