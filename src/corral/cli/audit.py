"""`corral audit verify FILE`: check that each line contains the hash of the line before it."""

from corral.cli import output
from corral.cli.option_parser import Flag, Options, UsageError
from corral.denials.audit import verify
from corral.errors import SandboxError
from corral.supervisor.report import to_json

SUMMARY = "check that no line of an audit file (`run --audit`) was changed or removed"
USAGE = "usage: corral audit [--json] verify FILE"
FLAGS = (Flag(name="--json", help="the verdict as JSON"),)


def main(options: Options, rest: list[str]) -> int:
    if len(rest) != 2 or rest[0] != "verify":
        raise UsageError("name the file to check", hint=USAGE)
    try:
        verdict = verify(rest[1])
    except OSError as error:
        raise SandboxError(
            f"cannot read {rest[1]}: {error.strerror}", hint="name a file that `run --audit` wrote"
        ) from error
    hint = ""
    text = f"the chain of {verdict.lines} lines is unbroken"
    text += "" if verdict.ended else "; the last run did not write its last line"
    if verdict.broken == 1:
        text = (
            "line 1 is not the start of an audit: lines were changed or removed, "
            "or this is another kind of file"
        )
        hint = "name a file that `run --audit` wrote; if you did, give `--audit` a new file"
    elif verdict.broken is not None:
        text = (
            f"line {verdict.broken} does not match the lines before it: "
            "lines were changed or removed"
        )
        hint = f"only the lines before line {verdict.broken} are intact; give `--audit` a new file"
    output.write_result(to_json(verdict), [f"{rest[1]}: {text}"], as_json=options.has("--json"))
    if hint and not options.has("--json"):
        output.write_hint(hint)
    return 1 if verdict.broken is not None else 0
