"""`corral doctor`: probe this machine and print one line for each capability."""

from corral import __version__
from corral.cli import output
from corral.cli.option_parser import Flag, Options, UsageError
from corral.plan.decide import decide
from corral.plan.host import Finding, Host
from corral.platforms import current
from corral.platforms.evidence import format_basis
from corral.policy.model import WALLS, Policy
from corral.record import fields, replace
from corral.supervisor import findings
from corral.supervisor.report import JSON_VERSION

SUMMARY = "probe this machine and show which controls it can enforce"
USAGE = "usage: corral doctor [-v] [--json]"
FLAGS = (
    Flag(name="--verbose", short="-v", help="also print the evidence of every probe"),
    Flag(name="--json", help="as JSON"),
)
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "AMD64": "amd64", "ARM64": "arm64"}
MARKS = {"proven": ("[✓]", "green"), "absent": ("[!]", "yellow"), "advice": ("[⚠]", "yellow")}


def main(options: Options, rest: list[str]) -> int:
    if rest:
        raise UsageError(f"doctor takes no arguments: {rest[0]}", hint=USAGE)
    host = findings.current_host(fresh=True)
    if options.has("--json"):
        output.write_json(describe_host(host))
        return 0
    works, verdict = judge(host)
    _print_marked("proven", f"OS: {host.system} ({ARCHITECTURES.get(host.machine, host.machine)})")
    for status, text, finding in current.load().doctor(host):
        _print_marked(status, text)
        if finding is not None and options.has("--verbose"):
            output.write_line(f"      {finding.evidence}")
        if finding is not None and finding.hint:
            output.write_line(f"      hint: {finding.hint}")
    _print_marked("proven" if works else "absent", f"Verdict: {verdict}")
    return 0


def describe_host(host: Host) -> dict[str, object]:
    """Return the data that `doctor --json` prints. schemas/doctor.json describes it."""
    works, verdict = judge(host)
    return {
        "version": JSON_VERSION,
        "corral": __version__,
        "os": host.system,
        "arch": ARCHITECTURES.get(host.machine, host.machine),
        "works": works,
        "verdict": verdict,
        "findings": [_row(host, item) for item in host.findings],
    }


def judge(host: Host) -> tuple[bool, str]:
    """Return whether `corral run` works here with the default policy, and a sentence that says what
    cannot be enforced.
    """
    # With `best_effort`, `decide` marks a control that cannot be enforced as degraded. Without it,
    # `decide` would raise an error.
    policy = replace(Policy(), best_effort=True)
    controls = decide(policy, host, current.load().chains(policy))
    missing = [held for held in controls if held.status == "degraded"]
    walls = [held.control for held in missing if held.control in WALLS]
    if walls:
        return False, f"`corral run` refuses here: nothing enforces {', '.join(walls)}"
    limits = [f"{held.control} ({held.mechanism or 'not at all'})" for held in missing]
    rest = f"; limits that are not fully enforced: {', '.join(limits)}" if limits else ""
    return True, f"`corral run` works here, and every wall is enforced{rest}"


def _row(host: Host, finding: Finding) -> dict[str, object]:
    """Return a finding as data.

    On macOS and Windows add `basis`, which says how the project knows that the capability works:
    on these systems, corral's tests do not run for every change.
    """
    basis = format_basis(host.system, finding.capability)
    values: dict[str, object] = {name: getattr(finding, name) for name in fields(finding)}
    return {**values, "basis": basis} if basis else values


def _print_marked(status: str, text: str) -> None:
    mark, colour = MARKS.get(status, MARKS["absent"])
    output.write_line(output.Painted(mark, colour), f" {text}")
