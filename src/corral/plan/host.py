"""What probes found out about this machine.

A capability is proven only if a probe used it in a disposable child, saw the denial *and* saw the
control succeed. Otherwise it is absent or unknown, and unknown counts as absent. No finding comes
from a version number.
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
    """`evidence` is what the probe saw; `hint` is what a person can do about an absence."""

    capability: str
    status: Status
    evidence: str
    hint: str = ""


@record
class Host:
    system: System
    machine: str
    findings: tuple[Finding, ...] = ()

    def finding(self, capability: str) -> Finding:
        for item in self.findings:
            if item.capability == capability:
                return item
        return Finding(capability=capability, status="unknown", evidence="not probed")

    def has(self, capability: str) -> bool:
        return self.finding(capability).status == "proven"
