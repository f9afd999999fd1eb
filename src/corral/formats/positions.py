"""Represent values together with their positions in a text. The parsers of the standard library do
not return positions.

corral needs them because messages about mistakes in a policy name a line, and because it edits
clients' files in place. An edit replaces only spans of the text (`Splice`), so comments, order,
indentation and line endings stay the same. JSON and TOML are read without recursion. Otherwise an
attacker could write a policy that is nested so deeply that it exhausts the stack.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from corral.errors import SandboxError
from corral.record import record

Wanted = Callable[[tuple[str, ...]], bool]
Path = tuple[str | int, ...]

MAX_LINE_DEPTH = 4
"""The maximum depth at which keys get line numbers. Valid policies are not nested more deeply, and
the memory for paths grows with the square of the depth.
"""


def everything(_keys: tuple[str, ...]) -> bool:
    return True


class BrokenFileError(SandboxError):
    """Raised for text that is not valid JSON, TOML or YAML. `at` is the line and the column, both
    counted from 1.
    """

    def __init__(self, what: str, at: tuple[int, int] | None = None) -> None:
        super().__init__(what if at is None else f"line {at[0]}, column {at[1]}: {what}")


@record
class Value:
    """A value and its positions in a text. The text of the value extends from `start` to `end`, and
    its key begins at `key`. A position is -1 if there is none, for example for a TOML table that is
    spread over several headers.

    `flow` is False for a list or table without brackets. A `shared` value (a YAML alias) cannot be
    edited, because other lines of the file refer to it.
    """

    data: object
    start: int = -1
    end: int = -1
    key: int = -1
    members: dict[str, Value] | None = None
    items: Sequence[Value] | None = None
    flow: bool = True
    shared: bool = False


class Container:
    """A list or table that is being read. `path` is the key of the member that is read now. A
    dotted key of TOML has several parts.
    """

    def __init__(self, opening: str, start: int, key: int) -> None:
        self.is_table = opening == "{"
        self.closing = "}" if self.is_table else "]"
        self.start = start
        self.key = key
        self.path: tuple[str, ...] = ()
        self.members: dict[str, Value] = {}
        self.items: list[Value] = []

    def close(self, end: int) -> Value:
        if self.is_table:
            data = {name: value.data for name, value in self.members.items()}
            return Value(data=data, start=self.start, end=end, key=self.key, members=self.members)
        listed = [item.data for item in self.items]
        return Value(data=listed, start=self.start, end=end, key=self.key, items=self.items)


@record
class Splice:
    start: int
    end: int
    text: str


def splice(text: str, changes: Sequence[Splice]) -> str:
    """Return the text with all changes made. The positions of each change refer to the original
    text.
    """
    for change in sorted(changes, key=lambda one: one.start, reverse=True):
        text = text[: change.start] + change.text + text[change.end :]
    return text


def line_and_column(text: str, at: int) -> tuple[int, int]:
    line = text.count("\n", 0, at)
    return line + 1, at - (text.rfind("\n", 0, at) + 1) + 1


def line_counter(text: str) -> Callable[[int], int]:
    """Find all line ends once, and return a function that converts positions to line numbers."""
    ends = [at for at, char in enumerate(text) if char == "\n"]
    return lambda at: bisect_left(ends, at) + 1


def line_numbers(text: str, root: Value) -> dict[Path, int]:
    """Return the line of each key, and of each item of a list, down to MAX_LINE_DEPTH."""
    line_of = line_counter(text)
    found: dict[Path, int] = {}
    pending: list[tuple[Path, Value]] = [((), root)]
    while pending:
        path, value = pending.pop()
        below: Iterable[tuple[str | int, Value]] = enumerate(value.items or ())
        for part, item in value.members.items() if value.members else below:
            found[*path, part] = line_of(item.start if item.key < 0 else item.key)
            if (item.members or item.items) and len(path) + 1 < MAX_LINE_DEPTH:
                pending.append(((*path, part), item))
    return found


def newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def indent(text: str, at: int) -> str | None:
    """Return the white space before `at` on its line, or None if other text is there."""
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return None if before.strip(" \t\ufeff") else before.lstrip("\ufeff")


def prepend(text: str, items: Value, drop: int, words: Sequence[str]) -> Splice:
    """Return a splice that removes the first `drop` items of a list in brackets and puts `words` in
    their place. If the first item is at the start of a line, each new item gets its own line.
    """
    found = items.items or ()
    if not found:
        return Splice(start=items.start + 1, end=items.start + 1, text=", ".join(words))
    first = found[0].start
    alone = indent(text, first)
    comma = ", " if alone is None else f",{newline(text)}{alone}"
    if drop >= len(found):
        return Splice(start=first, end=found[-1].end, text=comma.join(words))
    return Splice(start=first, end=found[drop].start, text=comma.join([*words, ""]))


def without(_text: str, items: Value, drop: int) -> Splice:
    found = items.items or ()
    if drop >= len(found):
        return Splice(start=items.start + 1, end=items.end - 1, text="")
    return Splice(start=found[0].start, end=found[drop].start, text="")


def escaped(text: str) -> str:
    """Return a string in double quotes, with escapes that both TOML and YAML understand."""
    return '"' + "".join(map(_letter, text)) + '"'


def _letter(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char == " " or (char.isprintable() and char != "\ufeff"):
        return char
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}"


def same(one: object, other: object) -> bool:
    """Compare like `==`, except that true differs from 1, NaN equals NaN, and the order of keys
    matters.
    """
    pending = [(one, other)]
    while pending:
        one, other = pending.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            if list(one) != list(other):
                return False
            pending += [(one[key], other[key]) for key in one]
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            pending += zip(one, other, strict=True)
        elif type(one) is not type(other) or (one != other and repr(one) != repr(other)):
            return False
    return True
