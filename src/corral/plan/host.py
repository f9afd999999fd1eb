"""What this machine was seen to do: Capability, Finding, Host.

A capability is PROVEN only if a probe did the thing in a disposable child, saw the denial *and* saw
its control succeed. Everything else is absent or unknown, and unknown counts as absent. Nothing
here is ever concluded from a version number.
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
