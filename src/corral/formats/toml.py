"""Find the positions of TOML values. The values themselves are read by `tomllib`.

The scanner reads only text that `tomllib` has accepted, and its values are compared with those of
`tomllib`. If they differ, `locate` raises an error, because the positions may be wrong too.
"""

import re
import tomllib
from collections.abc import Sequence

from corral.formats import positions
from corral.formats.bounded_toml import parse_toml
from corral.formats.positions import BrokenFileError, Container, Value, Wanted, everything

prepend, without, quote = positions.prepend, positions.without, positions.escaped

BLANK = re.compile(r"[ \t]*")
SKIP = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
COMMA = re.compile(f"{SKIP.pattern},?{SKIP.pattern}")
STRING = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+"{3,5}'
    r"|'''(?:[^']++|'(?!''))*+'{3,5}"
    r'|"(?:[^"\\\n]++|\\.)*+"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
BARE = re.compile(r"[A-Za-z0-9_-]+")
WORD = re.compile(r"[^,\]}#\n]*[^,\]}#\s]")
UNSURE = "corral cannot find the positions of all values in this file"
ARRAY = Value(data=None)
"""The scanner returns this value for each array of tables. It does not look for positions inside,
because clients' settings are never in an array of tables.
"""


class Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            where = positions.line_and_column(self.text, self.at)
            raise BrokenFileError("corral cannot read the text from here on", where)
        self.at = found.end()
        return found[0]

    def sees(self, mark: str) -> bool:
        return self.text.startswith(mark, self.at)

    def part(self) -> str:
        self.skip(BLANK)
        quoted = self.sees('"') or self.sees("'")
        source = self.skip(STRING if quoted else BARE)
        self.skip(BLANK)
        return str(_decoded(source)) if quoted else source

    def path(self) -> tuple[str, ...]:
        parts = [self.part()]
        while self.sees("."):
            self.at += 1
            parts.append(self.part())
        return tuple(parts)

    def member(self) -> tuple[tuple[str, ...], int]:
        """Read a key and its equals sign. Return the key and its position."""
        key, path = self.at, self.path()
        self.at += 1
        self.skip(BLANK)
        return path, key

    def value(self, key: int) -> Value:
        outer: list[Container] = []
        while True:
            start, first = self.at, self.text[self.at : self.at + 1]
            found: Value | None = None
            if first in {"[", "{"}:
                outer.append(Container(first, start, key))
                self.at += 1
            else:
                source = self.skip(STRING if first in {'"', "'"} else WORD)
                found = Value(data=_decoded(source), start=start, end=self.at, key=key)
            while True:
                if found is not None:
                    if not outer:
                        return found
                    _add(outer[-1], found)
                self.skip(COMMA)
                if not self.sees(outer[-1].closing):
                    break
                self.at += 1
                found = outer.pop().close(self.at)
            key = -1
            if outer[-1].is_table:
                outer[-1].path, key = self.member()

    def document(self) -> Value:
        root = table = _table(-1, flow=False)
        arrays: list[tuple[Value, str]] = []
        self.skip(SKIP)
        while self.at < len(self.text):
            if self.sees("["):
                marks = 2 if self.sees("[[") else 1
                self.at += marks
                key, path = self.at, self.path()
                self.at += marks
                if marks == 1:
                    table = _enter(root, path, key)
                else:
                    above = _enter(root, path[:-1], key)
                    _members(above)[path[-1]] = ARRAY
                    arrays.append((above, path[-1]))
                    table = _table(-1, flow=False)
            else:
                path, key = self.member()
                found = self.value(key)
                _put(_enter(table, path[:-1], key), path[-1], found)
            self.skip(SKIP)
        for above, name in arrays:
            _members(above).pop(name, None)
        return root


def _decoded(source: str) -> object:
    """Return the value of a scalar. Parse common values without `tomllib`, which is slower."""
    if source.isascii() and source.isdigit():
        return int(source)
    mark = source[:1]
    if mark in {'"', "'"} and "\\" not in source and not source.startswith(mark * 3):
        return source[1:-1]
    found: object = tomllib.loads(f"x = {source}")["x"]
    return found


def _table(key: int, *, flow: bool) -> Value:
    return Value(data={}, key=key, members={}, flow=flow)


def _members(table: Value) -> dict[str, Value]:
    if table.members is None:
        raise BrokenFileError(UNSURE)
    return table.members


def _put(table: Value, name: str, found: Value) -> None:
    _members(table)[name] = found
    if isinstance(table.data, dict):
        table.data[name] = found.data


def _enter(table: Value, path: Sequence[str], key: int) -> Value:
    """Return the table at a path. Create missing tables."""
    for name in path:
        below = _members(table).get(name)
        if below is ARRAY:
            return _table(-1, flow=False)
        if below is None:
            below = _table(key, flow=table.flow)
            _put(table, name, below)
        table = below
    return table


def _add(container: Container, found: Value) -> None:
    if not container.is_table:
        container.items.append(found)
        return
    first, *rest = container.path
    if rest:
        table = container.members.setdefault(first, _table(found.key, flow=True))
        _put(_enter(table, rest[:-1], found.key), rest[-1], found)
    else:
        container.members[first] = found


def read(text: str, _wanted: Wanted = everything) -> Value:
    try:
        expected = load(text)
    except ValueError as error:
        raise BrokenFileError(str(error)) from None
    return locate(text, expected)


def locate(text: str, expected: object) -> Value:
    """Return the values in a text with their positions. `expected` is the value from `tomllib`."""
    scanner = Scanner(text)
    scanner.at = len(text) - len(text.removeprefix("\ufeff"))
    try:
        found = scanner.document()
    except ValueError:
        raise BrokenFileError(UNSURE) from None
    if not _agrees(found.data, expected):
        raise BrokenFileError(UNSURE)
    return found


def _agrees(found: object, expected: object) -> bool:
    """Return whether all values are as expected. Arrays of tables may be missing in `found`,
    because the scanner leaves them out.
    """
    pending = [(found, expected)]
    while pending:
        one, other = pending.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            if any(name not in other for name in one):
                return False
            pending += [(one[name], other[name]) for name in one]
            if not all(name in one or _has_tables(value) for name, value in other.items()):
                return False
        elif not positions.same(one, other):
            return False
    return True


def _has_tables(value: object) -> bool:
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            pending += one.values()
        elif isinstance(one, list) and any(isinstance(item, dict) for item in one):
            return True
    return False


def load(text: str) -> object:
    return parse_toml(text.removeprefix("\ufeff"))


def member(text: str, table: Value, after: Value, name: str, words: Sequence[str]) -> str:
    """Return the text that adds the key `name` with a list of words. The caller inserts it after
    the value `after`.

    The new key has the same prefix as the key of `after`: `a.b.args = [...]` follows
    `a.b.command = ...`.
    """
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
    return positions.newline(text) + (positions.indent(text, after.key) or "") + listed
