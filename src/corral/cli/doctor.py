"""`corral doctor`: what this machine was seen to do, one line a capability."""

from __future__ import annotations

from corral.cli import output
from corral.cli.options import Flag, UsageError
from corral.report import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.options import Options
    from corral.host import Finding, Host

SUMMARY = "probe this machine by effect and say what holds"
USAGE = "usage: corral doctor [-v] [--json]"
FLAGS = (
    Flag(name="--verbose", short="-v", help="with the evidence of every probe"),
    Flag(name="--json", help="as JSON"),
)
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LABELS = {
    "user_namespaces": "User namespaces",
    "mount_namespace": "Mount namespaces",
    "pid_namespace": "PID namespaces",
    "network_namespace": "Network namespaces",
    "landlock": "Landlock",
    "landlock_wall": "Landlock as the only wall",
    "landlock_scope": "Landlock signal scope",
    "guardian": "Guardian",
    "seccomp": "Seccomp",
    "gateway": "Network allowlist",
    "inward": "Ports on host loopback",
    "exec_cookie": "Subprocess blocking",
    "rlimits": "Rlimits",
    "nproc": "Process limit",
    "sampling": "Sampling",
}
CGROUP = "cgroup_"
TIERS = (
    ("user_namespaces", "mount_namespace", "pid_namespace", "network_namespace", "seccomp"),
    ("landlock_wall", "guardian", "seccomp"),
)
"""What `run` needs for its walls, with namespaces or without."""
WORDS = {"rlimits": "supported", "nproc": "supported", "exec_cookie": "supported"}


def main(options: Options, rest: list[str]) -> int:
    from corral import host

    if rest:
        raise UsageError(f"doctor takes no further words: {rest[0]}", hint=USAGE)

    found = host.current(fresh=True)
    if options.has("--json"):
        data = {"os": found.system, "arch": architecture(found), "findings": plain(found.findings)}
        output.json(data)
        return 0
    output.say(_mark("proven", f"OS: {found.system} ({architecture(found)})"))
    for line in cgroup_lines([item for item in found.findings if CGROUP in item.capability]):
        output.say(line)
    for finding in found.findings:
        if CGROUP in finding.capability:
            continue
        output.say(_line(finding))
        if options.has("--verbose"):
            output.say(f"      {finding.evidence}")
        if finding.hint:
            output.say(f"      hint: {finding.hint}")
    if not any(all(found.has(name) for name in tier) for tier in TIERS):
        text = "Recommendation: the walls cannot be put up here, so `corral run` refuses"
        output.say(output.paint(f"[⚠] {text}", "yellow"))
    return 0


def cgroup_lines(findings: list[Finding]) -> list[str]:
    """Four findings, one subject: what holds, and what does not and why."""
    held = [item for item in findings if item.status == "proven"]
    lost = [item for item in findings if item.status != "proven"]
    names = ", ".join(item.capability.removeprefix(CGROUP) for item in lost)
    why = lost[0].evidence if lost else ""
    if not held:
        return [_mark("absent", f"Cgroups v2: NOT available ({why})")] if lost else []
    place = held[0].evidence.partition(": ")[0]
    lines = [_mark("proven", f"Cgroups v2: available {place}")]
    return lines + (
        [_mark("absent", f"Cgroups delegation: limited ({names}: {why})")] if lost else []
    )


def architecture(found: Host) -> str:
    return ARCHITECTURES.get(found.machine, found.machine)


def _line(finding: Finding) -> str:
    label = LABELS.get(finding.capability, finding.capability)
    held = finding.status == "proven"
    words = (
        WORDS.get(finding.capability, "available")
        if held
        else f"NOT available ({finding.evidence})"
    )
    return _mark(finding.status, f"{label}: {words}")


def _mark(status: str, text: str) -> str:
    if status == "proven":
        return output.paint("[✓]", "green") + f" {text}"
    return output.paint("[!]", "yellow") + f" {text}"
