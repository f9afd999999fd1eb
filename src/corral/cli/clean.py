"""`corral clean`: remove leftovers of killed runs, and stop installations whose client has exited.

On Windows the command also removes the file permissions that runs kept because of the policy key
`windows.keep_grants`.
"""

import sys

from corral.cli import output
from corral.cli.option_parser import Flag, Options, UsageError
from corral.platforms import current, run_records

if sys.platform == "win32":
    from corral.platforms.windows import undo
    from corral.platforms.windows.files import journal

SUMMARY = "remove leftovers of killed runs (as every start does), and permissions kept on Windows"
USAGE = "usage: corral clean [--json]"
FLAGS = (Flag(name="--json", help="the paths as JSON"),)


def main(options: Options, rest: list[str]) -> int:
    if rest:
        raise UsageError(f"clean takes no arguments: {rest[0]}", hint=USAGE)
    alone = [entry for entry in run_records.live() if entry.is_installer()]
    ended = [path for path in map(run_records.end, alone) if path]
    removed = run_records.sweep(current.load().clean)
    freed, problems = list[str](), list[str]()
    if sys.platform == "win32":
        freed, problems = undo.clean(journal.default_directory())
    lines = [f"ended the installation of {entry.command[-1]}" for entry in alone]
    lines += [f"removed {path}" for path in removed]
    lines += [f"removed corral's permissions from {path}" for path in freed]
    lines = lines or ["there was nothing to remove"]
    output.write_result([*ended, *removed, *freed], lines, as_json=options.has("--json"))
    for text in problems:
        output.warn(text)
    return 1 if problems else 0
