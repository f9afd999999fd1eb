"""The only place that prints. stdout belongs to the target in `run`, so corral speaks on stderr there."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.errors import SandboxError

COLOURS = {"green": "32", "yellow": "33", "red": "31", "bold": "1", "dim": "2"}


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    sys.stderr.write(f"corral: {text}\n")
    sys.stderr.flush()


def warn(text: str) -> None:
    note(f"warning: {text}")


def error(problem: SandboxError) -> None:
    """Two lines: what, then a hint."""
    note(problem.message)
    if problem.hint:
        sys.stderr.write(f"hint: {problem.hint}\n")


def json(value: object) -> None:
    import json as module

    say(module.dumps(value, indent=2, ensure_ascii=False))


def paint(text: str, colour: str) -> str:
    """Colour only where a person looks and has not refused it."""
    if "NO_COLOR" in os.environ or not sys.stdout.isatty():
        return text
    return f"\033[{COLOURS[colour]}m{text}\033[0m"


def table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))] if rows else []
    for row in rows:
        padded = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        say("  ".join(padded).rstrip())
