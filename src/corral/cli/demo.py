"""`corral demo`: run a hostile MCP server inside and outside a sandbox, and compare the results."""

import itertools
import shutil
import textwrap
from dataclasses import asdict

from corral.cli import output
from corral.cli.doctor import describe_host
from corral.cli.option_parser import Flag, Options, UsageError
from corral.demo import run as demo
from corral.demo.anonymous import remove_names
from corral.demo.run import ActResult, Wall
from corral.errors import SandboxError
from corral.safe_text import printable
from corral.supervisor.findings import current_host
from corral.supervisor.report import JSON_VERSION

SUMMARY = "watch a hostile MCP server fail inside the walls, and succeed outside"
USAGE = "usage: corral demo [--json]"
FLAGS = (Flag(name="--json", help="as JSON"),)
HEADER = ["", "act", "inside", "wall", "outside"]
GAP = "  "
WIDTH = 110  # the width of the table if there is no terminal
MIN_WIDTH = 10
MARKS = {"green": "✓", "yellow": "!", "red": "✗"}
COLOURS = {
    **dict.fromkeys(("stopped", "works"), "green"),
    **dict.fromkeys(("unpromised", "open", "unproven"), "yellow"),
}
EXPLANATIONS = {
    "unpromised": "stopped, but not by a wall of this run",
    "open": "not stopped: this host does not support that wall, and the report says so",
    "escaped": "NOT STOPPED, although the report says that its wall is enforced",
    "unproven": "fails outside as well, so its failure inside proves nothing",
    "broken": "should work inside and outside, but does not",
}


def main(options: Options, rest: list[str]) -> int:
    if rest:
        raise UsageError(f"demo takes no arguments: {rest[0]}", hint=USAGE)
    try:
        results, untried = demo.run_acts()
    except (SandboxError, OSError) as error:
        if not options.has("--json"):
            raise
        results, untried = [], [f"all acts (the demo could not run: {error})"]
    good = demo.has_passed(results)
    parts = demo.sort_results(results, untried)
    if options.has("--json"):
        output.write_json(_to_json(results, parts, ok=good))
        return 0 if good else 1
    _print_table(results)
    output.write_line(f"held: {len(parts.pop('held'))} acts")
    for title, names in parts.items():
        output.write_line(f"{title}: {'; '.join(names) or 'nothing'}")
    output.write_line(output.Painted(demo.summarize(results), "green" if good else "red"))
    return 0 if good else 1


def _to_json(results: list[ActResult], parts: dict[str, list[str]], *, ok: bool) -> object:
    """Return the results as data, without personal names, so that users can publish them."""
    found = {
        "version": JSON_VERSION,
        "ok": ok,
        "summary": demo.summarize(results),
        "acts": list(map(asdict, results)),
        **{title.replace(" ", "_"): names for title, names in parts.items()},
        "host": describe_host(current_host(fresh=True)),
    }
    return remove_names(found)


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
    """Return the cells of a row. Each text from the server becomes one line of printable
    characters.
    """
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
    """Return the widths of the columns. If they do not fit into `width`, narrow the widest columns,
    but not below MIN_WIDTH.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width and max(widths) > MIN_WIDTH:
        widths[widths.index(max(widths))] -= 1
    return widths


def _wrap_row(row: list[str], widths: list[int]) -> list[list[str]]:
    wrapped = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
    lines = itertools.zip_longest(*wrapped, fillvalue="")
    return [
        [f"{text:<{width}}" for text, width in zip(line, widths, strict=True)] for line in lines
    ]
