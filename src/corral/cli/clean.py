"""`corral clean`: take back what `windows.keep_grants` lets stay after a run."""

from __future__ import annotations

import sys

from corral.cli import output
from corral.cli.option_parser import Flag, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.option_parser import Options

SUMMARY = "remove the permissions that windows.keep_grants has kept"
USAGE = "usage: corral clean [--json]"
FLAGS = (Flag(name="--json", help="the paths as JSON"),)


def main(options: Options, rest: list[str]) -> int:
    if rest:
        raise UsageError(f"clean takes no further words: {rest[0]}", hint=USAGE)
    cleaned, problems = _clean()
    if options.has("--json"):
        output.json(cleaned)
    else:
        for path in cleaned:
            output.say(f"removed corral's permissions from {path}")
    for text in problems:
        output.warn(text)
    return 1 if problems else 0


def _clean() -> tuple[list[str], list[str]]:
    """Only on Windows are permissions of the host's own files ever changed."""
    if sys.platform != "win32":
        return [], []
    from corral.platforms.windows import undo
    from corral.platforms.windows.files import journal

    return undo.clean(journal.default_directory())
