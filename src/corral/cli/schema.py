"""`corral schema`: the JSON Schema of a policy file, for editors."""

from __future__ import annotations

from corral.cli import output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.options import Flag, Options

SUMMARY = "print the JSON Schema of a policy file"
USAGE = "usage: corral schema"
FLAGS: tuple[Flag, ...] = ()


def main(_options: Options, _rest: list[str]) -> int:
    from corral.schema import json_schema

    output.json(json_schema())
    return 0
