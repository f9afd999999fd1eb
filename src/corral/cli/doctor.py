"""`corral doctor`: probe this machine and print one line for each capability."""

from corral.cli import output
from corral.cli.option_parser import Flag, Options, UsageError
from corral.platforms import current
from corral.supervisor import findings
from corral.supervisor.report import to_json

SUMMARY = "probe this machine by effect and say what holds"
USAGE = "usage: corral doctor [-v] [--json]"
FLAGS = (
    Flag(name="--verbose", short="-v", help="with the evidence of every probe"),
    Flag(name="--json", help="as JSON"),
)
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "AMD64": "amd64", "ARM64": "arm64"}
MARKS = {"proven": ("[✓]", "green"), "absent": ("[!]", "yellow"), "advice": ("[⚠]", "yellow")}


def main(options: Options, rest: list[str]) -> int:
    if rest:
        raise UsageError(f"doctor takes no further words: {rest[0]}", hint=USAGE)
    host = findings.current_host(fresh=True)
    architecture = ARCHITECTURES.get(host.machine, host.machine)
    if options.has("--json"):
        output.write_json(
            {"os": host.system, "arch": architecture, "findings": to_json(host.findings)}
        )
        return 0
    _print_marked("proven", f"OS: {host.system} ({architecture})")
    for status, text, finding in current.load().doctor(host):
        _print_marked(status, text)
        if finding is not None and options.has("--verbose"):
            output.write_line(f"      {finding.evidence}")
        if finding is not None and finding.hint:
            output.write_line(f"      hint: {finding.hint}")
    return 0


def _print_marked(status: str, text: str) -> None:
    mark, colour = MARKS.get(status, MARKS["absent"])
    output.write_line(output.Painted(mark, colour), f" {text}")
