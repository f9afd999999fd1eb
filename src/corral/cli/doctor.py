"""`corral doctor`: what this machine was seen to do, one line a capability."""

from __future__ import annotations

from corral.cli import output
from corral.cli.option_parser import Flag, UsageError
from corral.supervisor.report import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.option_parser import Options
    from corral.plan.host import Host

SUMMARY = "probe this machine by effect and say what holds"
USAGE = "usage: corral doctor [-v] [--json]"
FLAGS = (
    Flag(name="--verbose", short="-v", help="with the evidence of every probe"),
    Flag(name="--json", help="as JSON"),
)
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "AMD64": "amd64", "ARM64": "arm64"}
MARKS = {"proven": ("[✓]", "green"), "absent": ("[!]", "yellow"), "advice": ("[⚠]", "yellow")}


def main(options: Options, rest: list[str]) -> int:
    from corral.platforms import current
    from corral.supervisor import findings

    if rest:
        raise UsageError(f"doctor takes no further words: {rest[0]}", hint=USAGE)

    found = findings.current_host(fresh=True)
    if options.has("--json"):
        data = {
            "os": found.system,
            "arch": architecture(found),
            "findings": to_json(found.findings),
        }
        output.json(data)
        return 0
    output.say(_mark("proven", f"OS: {found.system} ({architecture(found)})"))
    for status, text, finding in current.load().doctor(found):
        output.say(_mark(status, text))
        if finding is not None and options.has("--verbose"):
            output.say(f"      {finding.evidence}")
        if finding is not None and finding.hint:
            output.say(f"      hint: {finding.hint}")
    return 0


def architecture(found: Host) -> str:
    return ARCHITECTURES.get(found.machine, found.machine)


def _mark(status: str, text: str) -> str:
    mark, colour = MARKS.get(status, MARKS["absent"])
    return f"{output.paint(mark, colour)} {text}"
