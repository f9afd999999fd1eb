"""`corral check FILE`: read a policy file and list all of its mistakes at once."""

from corral.cli import output
from corral.cli.option_parser import Flag, Options, UsageError
from corral.errors import ManifestError, Mistake
from corral.policy.manifest import load

SUMMARY = "check a policy file and list every mistake with its line"
USAGE = "usage: corral check [--json] FILE..."
FLAGS = (Flag(name="--json", help="mistakes as JSON"),)


def main(options: Options, rest: list[str]) -> int:
    if not rest:
        raise UsageError("no file was given", hint=USAGE)
    mistakes: list[Mistake] = []
    lines, hints = [], []
    for path in rest:
        try:
            load(path)
        except ManifestError as problem:
            mistakes += problem.mistakes
            hints.append(problem.hint or "")
        else:
            lines.append(f"{path}: ok")
    keys = ("file", "line", "key", "mistake")
    data = [dict(zip(keys, mistake, strict=True)) for mistake in mistakes]
    output.write_result(data, [*lines, *map(str, mistakes)], as_json=options.has("--json"))
    for hint in dict.fromkeys(filter(None, () if options.has("--json") else hints)):
        output.write_hint(hint)
    return 1 if mistakes else 0
