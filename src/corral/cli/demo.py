"""`corral demo`: an MCP server that tries what it must not, inside the walls and outside."""

from __future__ import annotations

import sys

from corral.cli import output
from corral.cli.option_parser import Flag, UsageError
from corral.errors import SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.cli.option_parser import Options
    from corral.demo.run import Attempt, Row, Wall

SUMMARY = "watch a hostile MCP server fail inside the walls, and succeed outside"
USAGE = "usage: corral demo [--json]"
FLAGS = (Flag(name="--json", help="as JSON"),)
HEADER = ("", "act", "inside", "wall", "outside")
GAP = "  "
WIDTH = 110  # where there is no terminal to ask
NARROWEST = 10
MARKS = {
    "stopped": ("✓", "green"),
    "works": ("✓", "green"),
    "unpromised": ("!", "yellow"),
    "open": ("!", "yellow"),
    "escaped": ("✗", "red"),
    "unproven": ("✗", "red"),
    "broken": ("✗", "red"),
}
WORDS = {
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
    from corral.demo import run as demo
    from corral.supervisor.report import to_json

    rows = demo.perform()
    good = demo.passed(rows)
    if options.has("--json"):
        output.write_json({"ok": good, "summary": demo.summary(rows), "acts": to_json(rows)})
    else:
        _print(rows, demo.summary(rows), good=good)
    return 0 if good else 1


def _print(rows: Sequence[Row], summary: str, *, good: bool) -> None:
    import shutil

    cells = [HEADER, *(_cells(row) for row in rows)]
    colours = ["bold", *(MARKS[row.verdict][1] for row in rows)]
    widths = fit(cells, shutil.get_terminal_size((WIDTH, 24)).columns)
    for row, colour in zip(cells, colours, strict=True):
        _say(row, widths, colour)
    output.write_line()
    for entry in rows:
        if entry.verdict in WORDS:
            mark, colour = MARKS[entry.verdict]
            output.write_line(output.paint(f"{mark} {entry.act}: {WORDS[entry.verdict]}", colour))
    output.write_line(output.paint(summary, "green" if good else "red"))


def _cells(row: Row) -> tuple[str, ...]:
    return (MARKS[row.verdict][0], row.act, _what(row.inside), _wall(row.wall), _what(row.outside))


def _wall(wall: Wall | None) -> str:
    if wall is None:
        return "permitted"
    if wall.status in {"degraded", "not asked"}:
        return f"{wall.control}: {wall.status}" + (f", {wall.why}" if wall.why else "")
    return f"{wall.control}: {wall.mechanism} ({wall.status})"


def _what(attempt: Attempt) -> str:
    """The server is not trusted: what it says reaches no terminal but as plain text."""
    text = " ".join(attempt.text.split())
    return text if text.isprintable() else repr(text)[1:-1]


def fit(cells: Sequence[tuple[str, ...]], width: int) -> list[int]:
    """Column widths: as wide as the text needs, the widest narrowed until all of it fits."""
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths


def _say(row: tuple[str, ...], widths: list[int], colour: str) -> None:
    """The mark alone carries colour, and all of the header."""
    import textwrap

    wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
    for at in range(max(map(len, wrapped))):
        line = [cell[at] if at < len(cell) else "" for cell in wrapped]
        padded = [f"{text:<{width}}" for text, width in zip(line, widths, strict=True)]
        if row is HEADER:
            output.write_line(output.paint(GAP.join(padded).rstrip(), colour))
        else:
            output.write_line(GAP.join([output.paint(padded[0], colour), *padded[1:]]).rstrip())
