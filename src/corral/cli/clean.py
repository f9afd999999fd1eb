"""`corral clean`: remove the permissions that `windows.keep_grants` leaves after a run."""

import sys

from corral.cli import output
from corral.cli.option_parser import Flag, Options, UsageError

SUMMARY = "remove the permissions that windows.keep_grants has kept"
USAGE = "usage: corral clean [--json]"
FLAGS = (Flag(name="--json", help="the paths as JSON"),)


def main(options: Options, rest: list[str]) -> int:
    if rest:
        raise UsageError(f"clean takes no further words: {rest[0]}", hint=USAGE)
    cleaned, problems = _clean()
    lines = [f"removed corral's permissions from {path}" for path in cleaned]
    output.write_result(cleaned, lines, as_json=options.has("--json"))
    for text in problems:
        output.warn(text)
    return 1 if problems else 0


def _clean() -> tuple[list[str], list[str]]:
    """Clean up on Windows: on no other system does corral change permissions of host files."""
    if sys.platform != "win32":
        return [], []
    from corral.platforms.windows import undo
    from corral.platforms.windows.files import journal

    return undo.clean(journal.default_directory())
