"""TOML: `tomllib` says what the values are, this says where they stand.

Only text that `tomllib` has accepted is scanned, and what was found is compared with its answer:
a place that is not beyond doubt is an error, never a guess.
"""

from __future__ import annotations

import re
import tomllib

from corral.formats import positions
from corral.formats.positions import (
    BrokenFileError,
    Splice,
    Value,
    escaped,
    everything,
    indent,
    newline,
    same,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.formats.positions import Wanted

BLANK = re.compile(r"[ \t]*")
SKIP = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
STRING = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+"{3,5}'
    r"|'''(?:[^']++|'(?!''))*+'{3,5}"
    r'|"(?:[^"\\\n]++|\\.)*+"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
BARE = re.compile(r"[A-Za-z0-9_-]+")
WORD = re.compile(r"[^,\]}#\n]*[^,\]}#\s]")


class Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise BrokenFileError(
                "a place that cannot be read", positions.place(self.text, self.at)
            )
        self.at = found.end()
        return found[0]

    def sees(self, mark: str) -> bool:
        return self.text.startswith(mark, self.at)

    def part(self) -> str:
        self.skip(BLANK)
        quoted = self.sees('"') or self.sees("'")
        source = self.skip(STRING if quoted else BARE)
        self.skip(BLANK)
        return str(_value(source)) if quoted else source

    def path(self) -> tuple[str, ...]:
        parts = [self.part()]
        while self.sees("."):
            self.at += 1
            parts.append(self.part())
        return tuple(parts)

    def value(self, key: int) -> Value:
        start = self.at
        if self.sees("["):
            return self.list(key)
        if self.sees("{"):
            return self.table(key)
        source = self.skip(STRING if self.sees('"') or self.sees("'") else WORD)
        return Value(data=_value(source), start=start, end=self.at, key=key)

    def list(self, key: int) -> Value:
        start, items = self.at, list[Value]()
        self.at += 1
        self.skip(SKIP)
        while not self.sees("]"):
            items.append(self.value(-1))
            self.skip(SKIP)
            if self.sees(","):
                self.at += 1
                self.skip(SKIP)
        self.at += 1
        data = [item.data for item in items]
        return Value(data=data, start=start, end=self.at, key=key, items=items)

    def table(self, key: int) -> Value:
        start = self.at
        tree: dict[str, object] = {}
        self.at += 1
        self.skip(SKIP)
        while not self.sees("}"):
            self.pair(tree, ())
            self.skip(SKIP)
            if self.sees(","):
                self.at += 1
                self.skip(SKIP)
        self.at += 1
        return _grown(tree, start=start, end=self.at, key=key, flow=True)

    def pair(self, tree: dict[str, object], prefix: tuple[str, ...]) -> None:
        key = self.at
        path = self.path()
        self.at += 1  # the equals sign
        self.skip(BLANK)
        _put(tree, (*prefix, *path), self.value(key))

    def document(self) -> Value:
        """Arrays of tables hold no servers: what is in them is passed over."""
        tree: dict[str, object] = {}
        arrays: list[tuple[str, ...]] = []
        into, prefix = tree, tuple[str, ...]()
        self.skip(SKIP)
        while self.at < len(self.text):
            if self.sees("["):
                marks = 2 if self.sees("[[") else 1
                self.at += marks
                prefix = self.path()
                self.at += marks
                if marks == 2:
                    arrays.append(prefix)
                inside = any(prefix[: len(array)] == array for array in arrays)
                into = {} if inside else tree
                _put(into, prefix, {})
            else:
                self.pair(into, prefix)
            self.skip(SKIP)
        return _grown(tree)


def _value(source: str) -> object:
    found: object = tomllib.loads(f"x = {source}")["x"]
    return found


def _put(tree: dict[str, object], path: tuple[str, ...], found: object) -> None:
    """`found` is a Value, or an empty table that a header names."""
    for part in path[:-1]:
        below = tree.setdefault(part, {})
        if not isinstance(below, dict):
            raise BrokenFileError("corral cannot tell for sure where the values in this file stand")
        tree = below
    if isinstance(found, Value):
        tree[path[-1]] = found
    else:
        tree.setdefault(path[-1], {})


def _grown(
    tree: dict[str, object], *, start: int = -1, end: int = -1, key: int = -1, flow: bool = False
) -> Value:
    members = {
        name: below if isinstance(below, Value) else _grown(_tree(below), flow=flow)
        for name, below in tree.items()
    }
    data = {name: value.data for name, value in members.items()}
    return Value(data=data, start=start, end=end, key=key, members=members, flow=flow)


def _tree(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def read(text: str, _wanted: Wanted = everything) -> Value:
    bare = text.removeprefix("\ufeff")
    try:
        expected = tomllib.loads(bare)
    except tomllib.TOMLDecodeError as error:
        raise BrokenFileError(str(error)) from None
    except RecursionError:
        raise BrokenFileError("nested too deeply") from None
    scanner = Scanner(text)
    scanner.at = len(text) - len(bare)
    found = scanner.document()
    if not _agrees(found.data, expected):
        raise BrokenFileError("corral cannot tell for sure where the values in this file stand")
    return found


def _agrees(found: object, expected: object) -> bool:
    """Everything found is there; what is missing stands in arrays of tables."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return all(
            name in expected and _agrees(value, expected[name]) for name, value in found.items()
        ) and all(name in found or _has_tables(value) for name, value in expected.items())
    return same(found, expected)


def _has_tables(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_tables, value.values()))
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def load(text: str) -> object:
    return tomllib.loads(text.removeprefix("\ufeff"))


def quote(text: str) -> str:
    return escaped(text)


def member(text: str, table: Value, after: Value, name: str, words: Sequence[str]) -> str:
    """`a.b.command = ...` is followed by `a.b.args = ...`."""
    scanner = Scanner(text)
    scanner.at = last = after.key
    scanner.part()
    while scanner.sees("."):
        scanner.at += 1
        last = scanner.at
        scanner.part()
    listed = f"{text[after.key : last]}{name} = [{', '.join(words)}]"
    if table.flow:
        return f", {listed}"
    return f"{newline(text)}{indent(text, after.key) or ''}{listed}"


def prepend(text: str, items: Value, drop: int, words: Sequence[str]) -> Splice:
    return positions.prepend(text, items, drop, words)


def without(_text: str, items: Value, drop: int) -> Splice:
    return positions.without(items, drop)
