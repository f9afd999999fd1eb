"""`corral version`: print the version of corral."""

from corral import __version__
from corral.cli import output
from corral.cli.option_parser import Flag, Options, UsageError

SUMMARY = "print the version of corral"
USAGE = "usage: corral version [--json]"
FLAGS = (Flag(name="--json", help="as JSON"),)


def main(options: Options, rest: list[str]) -> int:
    if rest:
        raise UsageError(f"version takes no arguments: {rest[0]}", hint=USAGE)
    as_json = options.has("--json")
    output.write_result({"version": __version__}, [f"corral {__version__}"], as_json=as_json)
    return 0
