"""`corral schema`: print the JSON Schema of a policy file, or of a command's JSON."""

import json
import os

import corral
from corral.cli import output
from corral.cli.option_parser import Flag, Options, UsageError, suggest
from corral.policy.schema import json_schema

SUMMARY = "print the JSON Schema of a policy file, or of a command's JSON"
USAGE = "usage: corral schema [policy|report|explain|doctor|demo]"
FLAGS: tuple[Flag, ...] = ()
NAMES = ("policy", "report", "explain", "doctor", "demo")


def main(_options: Options, rest: list[str]) -> int:
    name, *more = rest or ["policy"]
    if more or name not in NAMES:
        raise UsageError(f"there is no schema {' '.join(rest)}", hint=suggest(name, NAMES, USAGE))
    output.write_json(json_schema() if name == "policy" else read_schema(name))
    return 0


def read_schema(name: str) -> object:
    path = os.path.join(os.path.dirname(corral.__file__), "schemas", f"{name}.json")
    with open(path, encoding="utf-8") as file:
        schema: object = json.load(file)
    return schema
