"""Write the lines of `corral doctor` for a Windows host."""

from corral.plan.host import Host
from corral.platforms.doctor_lines import Line, add_basis, format_lines
from corral.platforms.windows.probes.host import LABELS

LIMITS = {"CPU": "job_cpu_rate", "memory": "job_memory", "pids": "job_processes"}
WALLS = ("app_container", "job_kill_on_close", "job_processes")
RECOMMENDATION = "Recommendation: Use Windows Sandbox or WSL2 for strict security"


def lines(host: Host) -> list[Line]:
    found = [_jobs(host), _limits(host), *_isolation(host)]
    found += format_lines(host.findings, LABELS)
    if not all(host.has(name) for name in WALLS):
        text = "use another host, because without walls corral refuses every run"
        found.append(("advice", f"Recommendation: {text}", None))
    found.append(("advice", RECOMMENDATION, None))
    return add_basis(found, host.system)


def _jobs(host: Host) -> Line:
    if host.has("job_kill_on_close"):
        return "proven", "Job Objects: supported", None
    why = host.finding("job_kill_on_close").evidence
    return "absent", f"Job Objects: NOT available ({why})", None


def _limits(host: Host) -> Line:
    supported = [label for label, name in LIMITS.items() if host.has(name)]
    if len(supported) == len(LIMITS):
        return "proven", "Resource limits: CPU, memory, pids supported", None
    missing = {label: name for label, name in LIMITS.items() if label not in supported}
    why = host.finding(next(iter(missing.values()))).evidence
    words = f"{', '.join(supported)} supported, " if supported else ""
    return "absent", f"Resource limits: {words}{', '.join(missing)} NOT available ({why})", None


def _isolation(host: Host) -> list[Line]:
    if host.has("app_container"):
        return [
            ("proven", "Network isolation: AppContainer", None),
            ("proven", "Filesystem sandbox: AppContainer", None),
        ]
    return [
        ("absent", "Network isolation: NOT available (requires WFP driver)", None),
        ("absent", "Filesystem sandbox: limited (NTFS permissions only)", None),
    ]
