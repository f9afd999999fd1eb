"""One line of the terminal, written over itself, for a person who waits. Nothing elsewhere."""

from __future__ import annotations

import sys

CLEAR = "\r\033[K"


def is_shown() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def show(text: str) -> None:
    """Empty text takes the line away."""
    if is_shown():
        sys.stderr.write(f"{CLEAR}corral: {text}" if text else CLEAR)
        sys.stderr.flush()
