"""Make text from untrusted sources safe for a message or a terminal."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

MASK = "***"
MAX_INTEGER = 2**63 - 1
PLAIN = frozenset("@%+=:,./-_~")
"""Characters that a shell takes literally, besides letters and digits."""
HEX_DIGITS = frozenset("0123456789abcdef")
INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Characters that count as letters, marks or symbols, but are invisible. They can make two
different names look equal, and can make a name look as if it ended early.
"""


def has_escapes(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that understands escape sequences."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def is_digest(text: object) -> bool:
    """Return whether a string is a hexadecimal SHA-256, which is safe as a file name."""
    return isinstance(text, str) and len(text) == 64 and HEX_DIGITS.issuperset(text)


def shown(value: object, limit: int = 60) -> str:
    """Describe a value for a message. Cut text after `limit` characters, and escape its control
    characters.
    """
    if isinstance(value, str):
        text = _escape_invisible(repr(value[:limit]))
        return text if len(value) <= limit else f"{text}..."
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_INTEGER:
        return "a number beyond 64 bits"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, dict):
        return "a table"
    return "a list" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


def printable(text: str) -> str:
    """Escape all characters in a string that could change what a terminal displays.

    Quotes are not escaped, because the text may be a command that a user pastes into a shell.
    """
    if not text.isprintable():
        text = "".join(one if one in "'\"" else repr(one)[1:-1] for one in text)
    return _escape_invisible(text)


def is_visible(character: str) -> bool:
    return character.isprintable() and character not in INVISIBLE


def _escape_invisible(text: str) -> str:
    if text.isascii() or INVISIBLE.isdisjoint(text):
        return text
    return "".join(f"\\u{ord(one):04x}" if one in INVISIBLE else one for one in text)


def mask_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Replace each span (start, end) of a string with MASK. Spans that overlap or touch become one
    mask.
    """
    found: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if start > done or not found:
            found += (text[done:start], MASK)
        done = max(done, end)
    return "".join(found) + text[done:]


def shell_word(text: str) -> str:
    """Quote a string as one word for a shell, if it needs quotes. `shlex` is not used, because it
    imports `re`, which would slow down the start.
    """
    if text and all(c.isascii() and (c.isalnum() or c in PLAIN) for c in text):
        return text
    return "'" + text.replace("'", "'\"'\"'") + "'"


def last_words(*words: str) -> str:
    """Quote the last words of a suggested command. Put `--` before them if one of them looks like
    an option, because a project may have named its server `--allow-subprocess`.
    """
    end = ["--"] if any(word.startswith("-") for word in words) else []
    return " ".join(map(shell_word, (*end, *words)))
