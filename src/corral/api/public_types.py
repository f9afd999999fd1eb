"""Types of the public API that are defined below it."""

from corral.errors import (
    CommandError,
    LaunchError,
    ManifestError,
    PolicyError,
    SandboxError,
    SupervisionError,
    UnenforceableError,
)
from corral.plan.host import Finding, Host
from corral.plan.model import Plan
from corral.supervisor.report import Report

__all__ = [
    "CommandError", "Finding", "Host", "LaunchError", "ManifestError", "Plan", "PolicyError",
    "Report", "SandboxError", "SupervisionError", "UnenforceableError",
]  # fmt: skip
