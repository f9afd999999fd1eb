"""`corral check FILE`: read a policy file and list all of its mistakes at once."""

from __future__ import annotations

from corral.cli import output
from corral.cli.option_parser import Flag, Options, UsageError
from corral.errors import ManifestError, Mistake
from corral.policy.manifest import load

SUMMARY = "check a policy file; every mistake with its place"
USAGE = "usage: corral check [--json] FILE..."
FLAGS = (Flag(name="--json", help="mistakes as JSON"),)


def main(options: Options, rest: list[str]) -> int:
    if not rest:
        raise UsageError("there is no file to check", hint=USAGE)
    mistakes: list[Mistake] = []
    for path in rest:
        try:
            load(path)
        except ManifestError as problem:
            mistakes += problem.mistakes
        else:
            if not options.has("--json"):
                output.write_line(f"{path}: ok")
    if options.has("--json"):
        keys = ("file", "line", "key", "mistake")
        output.write_json([dict(zip(keys, mistake, strict=True)) for mistake in mistakes])
    else:
        for mistake in mistakes:
            output.write_line(str(mistake))
    return 1 if mistakes else 0
