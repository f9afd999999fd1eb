"""`corral sweep`: remove what killed runs left behind."""

from corral.cli import output
from corral.cli.option_parser import Flag, Options
from corral.platforms import current, run_records

SUMMARY = "remove what dead runs left; every start does so too"
USAGE = "usage: corral sweep [--json]"
FLAGS = (Flag(name="--json", help="the removed paths as JSON"),)


def main(options: Options, _rest: list[str]) -> int:
    removed = run_records.sweep(current.load().clean)
    lines = [f"removed {path}" for path in removed]
    output.write_result(removed, lines, as_json=options.has("--json"))
    return 0
