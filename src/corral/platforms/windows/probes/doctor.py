"""What `corral doctor` says of a Windows host, a line a capability."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.host import Finding, Host

    Line = tuple[str, str, Finding | None]

LIMITS = {"CPU": "job_cpu_rate", "memory": "job_memory", "pids": "job_processes"}
WALLS = ("app_container", "job_kill_on_close", "job_processes")
LABELS = {
    "job_read_back": "Job limits read back",
    "job_kill_on_close": "Tree ends with corral",
    "job_memory": "Memory limit",
    "job_processes": "Process limit",
    "job_cpu_rate": "CPU rate limit",
    "job_accounting": "CPU time accounting",
    "job_ui": "UI restrictions",
    "child_process_policy": "Child process policy",
    "session": "Desktop session",
    "app_container_profile": "AppContainer profiles",
    "app_container": "AppContainer",
    "relay": "Network allowlist",
    "restricted token": "Restricted token",
    "minifilter driver": "Minifilter driver",
    "mitigations": "Mitigations",
    "strict_handles": "Strict handle checks",
}
RECOMMENDATION = "Recommendation: Use Windows Sandbox or WSL2 for strict security"


def lines(host: Host) -> list[Line]:
    """(status, words, the finding whose evidence and hint belong to them)."""
    told = [_jobs(host), _limits(host), _network(host), _files(host)]
    told += [(item.status, _words(item), item) for item in host.findings]
    if not all(host.has(name) for name in WALLS):
        text = "the walls cannot be put up here, so `corral run` refuses"
        told.append(("advice", f"Recommendation: {text}", None))
    told.append(("advice", RECOMMENDATION, None))
    return told


def _jobs(host: Host) -> Line:
    if host.has("job_kill_on_close"):
        return "proven", "Job Objects: supported", None
    return "absent", f"Job Objects: NOT available ({_why(host, 'job_kill_on_close')})", None


def _limits(host: Host) -> Line:
    held = [label for label, name in LIMITS.items() if host.has(name)]
    if len(held) == len(LIMITS):
        return "proven", "Resource limits: CPU, memory, pids supported", None
    lost = {label: name for label, name in LIMITS.items() if label not in held}
    why = _why(host, next(iter(lost.values())))
    words = f"{', '.join(held)} supported, " if held else ""
    return "absent", f"Resource limits: {words}{', '.join(lost)} NOT available ({why})", None


def _network(host: Host) -> Line:
    if host.has("app_container"):
        return "proven", "Network isolation: AppContainer", None
    return "absent", "Network isolation: NOT available (requires WFP driver)", None


def _files(host: Host) -> Line:
    if host.has("app_container"):
        return "proven", "Filesystem sandbox: AppContainer", None
    return "absent", "Filesystem sandbox: limited (NTFS permissions only)", None


def _why(host: Host, capability: str) -> str:
    return host.finding(capability).evidence


def _words(finding: Finding) -> str:
    label = LABELS.get(finding.capability, finding.capability)
    if finding.status != "proven":
        return f"{label}: NOT available ({finding.evidence})"
    return f"{label}: available"
