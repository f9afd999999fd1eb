"""`corral sweep`: remove what runs left that were killed with no chance to clean up."""

from __future__ import annotations

from corral.cli import output
from corral.cli.option_parser import Flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.option_parser import Options

SUMMARY = "remove what dead runs left; every start does so too"
USAGE = "usage: corral sweep [--json]"
FLAGS = (Flag(name="--json", help="the removed paths as JSON"),)


def main(options: Options, _rest: list[str]) -> int:
    from corral.platforms import current, run_records

    removed = run_records.sweep(current.load().clean)
    if options.has("--json"):
        output.json(removed)
    else:
        for path in removed:
            output.say(f"removed {path}")
    return 0
