"""Text from elsewhere, made safe for a message or a terminal."""

MAX_INTEGER = 2**63 - 1
HEX_DIGITS = frozenset("0123456789abcdef")


def is_digest(text: object) -> bool:
    """Return whether a text is a SHA-256 in hexadecimal, and so safe as a file name."""
    return isinstance(text, str) and len(text) == 64 and HEX_DIGITS.issuperset(text)


def shown(value: object, limit: int = 60) -> str:
    """Return a value as a message may show it: `repr` escapes control characters and the like."""
    if isinstance(value, str):
        return repr(value) if len(value) <= limit else repr(value[:limit]) + "..."
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
    """Return a text with everything escaped that could change what a terminal shows."""
    return text if text.isprintable() else repr(text)[1:-1]
