"""`corral audit verify FILE`: does every line of an audit follow from the one before it?"""

from __future__ import annotations

from corral.cli import output
from corral.cli.option_parser import Flag, UsageError
from corral.errors import SandboxError
from corral.supervisor.report import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.option_parser import Options

SUMMARY = "check the chain of an audit file that `run --audit` wrote"
USAGE = "usage: corral audit [--json] verify FILE"
FLAGS = (Flag(name="--json", help="the verdict as JSON"),)


def main(options: Options, rest: list[str]) -> int:
    from corral.denials.records import verify

    if len(rest) != 2 or rest[0] != "verify":
        raise UsageError("say what to do with which file", hint=USAGE)
    try:
        verdict = verify(rest[1])
    except OSError as error:
        raise SandboxError(
            f"cannot read {rest[1]}: {error.strerror}", hint="name a file that `run --audit` wrote"
        ) from error
    if options.has("--json"):
        output.json(to_json(verdict))
    elif verdict.broken is not None:
        output.say(f"{rest[1]}: line {verdict.broken} does not follow from what stands before it")
    else:
        end = "" if verdict.ended else "; its last run did not end it"
        output.say(f"{rest[1]}: {verdict.lines} lines, unbroken{end}")
    return 1 if verdict.broken is not None else 0
