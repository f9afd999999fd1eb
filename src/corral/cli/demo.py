"""`corral demo`: an MCP server that tries what it must not, inside the walls and outside."""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap

from corral.cli import output
from corral.cli.option_parser import Flag, Options, UsageError
from corral.errors import SandboxError
from corral.safe_text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.demo.run import ActResult, Wall

SUMMARY = "watch a hostile MCP server fail inside the walls, and succeed outside"
USAGE = "usage: corral demo [--json]"
FLAGS = (Flag(name="--json", help="as JSON"),)
HEADER = ["", "act", "inside", "wall", "outside"]
GAP = "  "
WIDTH = 110  # where there is no terminal to ask
MIN_WIDTH = 10
MARKS = {"green": "✓", "yellow": "!", "red": "✗"}
COLOURS = {"stopped": "green", "works": "green", "unpromised": "yellow", "open": "yellow"}
EXPLANATIONS = {
    "unpromised": "stopped, but no wall of this run promises it",
    "open": "not stopped on this host: that wall could not be put up, and the report says so",
    "escaped": "NOT STOPPED, although its wall is reported as up",
    "unproven": "fails outside as well, so its failure inside shows nothing",
    "broken": "has to work on both sides, and does not",
}


def main(options: Options, rest: list[str]) -> int:
    if rest:
        raise UsageError(f"demo takes no arguments: {rest[0]}", hint=USAGE)
    if sys.platform == "win32":
        raise SandboxError(
            "the demo's acts are made for Linux and macOS",
            hint="`corral doctor -v` tries what holds on Windows, each with its control",
        )
    from dataclasses import asdict

    from corral.demo import run as demo

    results = demo.run_acts()
    good, summary = demo.has_passed(results), demo.summarize(results)
    if options.has("--json"):
        output.write_json({"ok": good, "summary": summary, "acts": list(map(asdict, results))})
    else:
        _print_table(results)
        output.write_line(output.Painted(summary, "green" if good else "red"))
    return 0 if good else 1


def _print_table(results: list[ActResult]) -> None:
    colours = [COLOURS.get(result.verdict, "red") for result in results]
    rows = [_cells(MARKS[colour], row) for colour, row in zip(colours, results, strict=True)]
    widths = fit_columns([HEADER, *rows], shutil.get_terminal_size((WIDTH, 24)).columns)
    for line in _wrap_row(HEADER, widths):
        output.write_line(output.Painted(GAP.join(line).rstrip(), "bold"))
    for row, colour in zip(rows, colours, strict=True):
        for mark, *cells in _wrap_row(row, widths):
            output.write_line(output.Painted(mark, colour), GAP + GAP.join(cells).rstrip())
    output.write_line()
    for result, colour in zip(results, colours, strict=True):
        if why := EXPLANATIONS.get(result.verdict):
            output.write_line(output.Painted(f"{MARKS[colour]} {result.act}: {why}", colour))


def _cells(mark: str, result: ActResult) -> list[str]:
    """Return the cells of a row, the server's text in them without line ends and escapes."""
    inside, outside = (
        printable(" ".join(attempt.text.split())) for attempt in (result.inside, result.outside)
    )
    return [mark, result.act, inside, _format_wall(result.wall), outside]


def _format_wall(wall: Wall | None) -> str:
    if wall is None:
        return "permitted"
    if wall.status in {"degraded", "not asked"}:
        return f"{wall.control}: {wall.status}" + (f", {wall.why}" if wall.why else "")
    return f"{wall.control}: {wall.mechanism} ({wall.status})"


def fit_columns(rows: list[list[str]], width: int) -> list[int]:
    """Return column widths as wide as the text, the widest ones narrowed until all of them fit."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width and max(widths) > MIN_WIDTH:
        widths[widths.index(max(widths))] -= 1
    return widths


def _wrap_row(row: list[str], widths: list[int]) -> list[list[str]]:
    """Return the lines of a row, each of as many padded cells as there are columns."""
    wrapped = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
    lines = itertools.zip_longest(*wrapped, fillvalue="")
    return [
        [f"{text:<{width}}" for text, width in zip(line, widths, strict=True)] for line in lines
    ]
