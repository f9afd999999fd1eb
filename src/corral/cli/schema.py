"""`corral schema`: print the JSON Schema of a policy file, for editors."""

from corral.cli import output
from corral.cli.option_parser import Flag, Options, UsageError
from corral.policy.schema import json_schema

SUMMARY = "print the JSON Schema of a policy file"
USAGE = "usage: corral schema"
FLAGS: tuple[Flag, ...] = ()


def main(_options: Options, rest: list[str]) -> int:
    if rest:
        raise UsageError(f"schema takes no further words: {rest[0]}", hint=USAGE)
    output.write_json(json_schema())
    return 0
