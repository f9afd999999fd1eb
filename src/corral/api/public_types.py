"""Import the types of the public API from the packages that define them."""

from corral.api.policy_dict import PolicyDict
from corral.denials.records import Denial
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
from corral.policy.manifest import Manifest
from corral.supervisor.report import Outcome, Report

__all__ = [
    "CommandError", "Denial", "Finding", "Host", "LaunchError", "Manifest", "ManifestError",
    "Outcome", "Plan", "PolicyDict", "PolicyError", "Report", "SandboxError", "SupervisionError",
    "UnenforceableError",
]  # fmt: skip
