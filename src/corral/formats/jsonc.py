"""JSON, and JSON with comments and trailing commas, as the clients' own parsers take it."""

from __future__ import annotations

import json
import re

from corral.formats import positions
from corral.formats.positions import (
    BrokenFileError,
    Splice,
    Value,
    everything,
    indent,
    newline,
    place,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.formats.positions import Wanted

DEEPEST = 200
# Possessive: nothing is tried twice, and a text of megabytes takes no memory but its own.
TOKEN = re.compile(
    r"""(?P<skip>(?:[ \t\r\n]++|//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+\*/)++)
    |(?P<string>"(?:[^"\\\x00-\x1f]++|\\.)*+")
    |(?P<word>-?[0-9][0-9.eE+-]*|true|false|null)
    |(?P<mark>[][{},:])""",
    re.VERBOSE,
)
# For `load`, which shares nothing with the reader above.
STRING_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\]++)*+")|//[^\n]*|/\*.*?\*/', re.DOTALL)
STRING_OR_COMMA = re.compile(r'("(?:\\.|[^"\\]++)*+")|,(?=\s*[\]}])')


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


STRICT = json.JSONDecoder(parse_constant=_refuse)


class Reader:
    def __init__(self, text: str, wanted: Wanted) -> None:
        self.text = text
        self.wanted = wanted
        self.at = 1 if text.startswith("\ufeff") else 0
        self.kind = ""
        self.strict = True
        self.start = self.at
        self.end = self.at
        self.step()

    def step(self) -> None:
        """To the next token that means something; its kind is empty at the end."""
        while True:
            if self.at >= len(self.text):
                self.kind, self.start, self.end = "", len(self.text), len(self.text)
                return
            found = TOKEN.match(self.text, self.at)
            if found is None or found.lastgroup is None:
                raise self.wrong(self.at, self.strange())
            self.at = found.end()
            if found.lastgroup != "skip":
                break
        self.start, self.end = found.span()
        self.kind = found[0] if found.lastgroup == "mark" else found.lastgroup

    def strange(self) -> str:
        char = self.text[self.at]
        if char == '"':
            return "this text has no end on its line"
        if self.text.startswith("/*", self.at):
            return "this comment has no end"
        return f"{char!r} does not belong here"

    def wrong(self, at: int, what: str) -> BrokenFileError:
        if at >= len(self.text):
            what = "the file ends in the middle of a value"
        return BrokenFileError(what, place(self.text, at))

    def value(self, key: int = -1, depth: int = 0, at: tuple[str, ...] = ()) -> Value:
        if depth > DEEPEST:
            raise self.wrong(self.start, "nested too deeply")
        if self.kind in {"{", "["} and (found := self.passed(key, at)):
            return found
        if self.kind == "{":
            return self.table(key, depth, at)
        if self.kind == "[":
            return self.list(key, depth, at)
        if self.kind not in {"string", "word"}:
            raise self.wrong(self.start, "a value is missing here")
        found = Value(data=self.scalar(), start=self.start, end=self.end, key=key)
        self.step()
        return found

    def passed(self, key: int, at: tuple[str, ...]) -> Value | None:
        """Read what the caller does not want positions of in one go: some files are megabytes long."""
        if not self.strict or self.wanted(at):
            return None
        try:
            data: object
            data, self.at = STRICT.raw_decode(self.text, self.start)
        except (ValueError, RecursionError):
            self.strict = False  # a comment, or a mistake: the slow way tells them apart
            return None
        found = Value(data=data, start=self.start, end=self.at, key=key)
        self.step()
        return found

    def scalar(self) -> object:
        source = self.text[self.start : self.end]
        if self.kind == "string" and "\\" not in source:
            return source[1:-1]
        try:
            found: object = json.loads(source)
        except ValueError:
            raise self.wrong(self.start, "this is no JSON value") from None
        return found

    def table(self, key: int, depth: int, at: tuple[str, ...]) -> Value:
        start, members = self.start, dict[str, Value]()
        self.step()
        while self.kind != "}":
            if self.kind != "string":
                raise self.wrong(self.start, "a key in double quotes is missing here")
            start_of_key, name = self.start, str(self.scalar())
            if name in members:
                raise self.wrong(start_of_key, f"the key {name!r} is written twice")
            self.step()
            self.expect(":")
            members[name] = self.value(start_of_key, depth + 1, (*at, name))
            self.comma("}")
        end = self.close()
        data = {name: value.data for name, value in members.items()}
        return Value(data=data, start=start, end=end, key=key, members=members)

    def list(self, key: int, depth: int, at: tuple[str, ...]) -> Value:
        start, items = self.start, list[Value]()
        self.step()
        while self.kind != "]":
            items.append(self.value(-1, depth + 1, at))
            self.comma("]")
        end = self.close()
        data = [item.data for item in items]
        return Value(data=data, start=start, end=end, key=key, items=items)

    def expect(self, mark: str) -> None:
        if self.kind != mark:
            raise self.wrong(self.start, f"{mark!r} is missing here")
        self.step()

    def comma(self, end: str) -> None:
        if self.kind == ",":
            self.step()
        elif self.kind != end:
            raise self.wrong(self.start, f"',' or {end!r} is missing here")

    def close(self) -> int:
        end = self.end
        self.step()
        return end


def read(text: str, wanted: Wanted = everything) -> Value:
    reader = Reader(text, wanted)
    found = reader.value()
    if reader.kind:
        raise reader.wrong(reader.start, "something stands behind the end")
    return found


def load(text: str) -> object:
    bare = text.removeprefix("\ufeff")
    value: object
    try:
        value = json.loads(bare)
    except ValueError:
        bare = STRING_OR_COMMENT.sub(lambda found: found[1] or " ", bare)
        value = json.loads(STRING_OR_COMMA.sub(lambda found: found[1] or "", bare))
    return value


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def member(text: str, _table: Value, after: Value, name: str, words: Sequence[str]) -> str:
    alone = indent(text, after.key)
    gap = " " if alone is None else newline(text) + alone
    return f",{gap}{quote(name)}: [{', '.join(words)}]"


def prepend(text: str, items: Value, drop: int, words: Sequence[str]) -> Splice:
    return positions.prepend(text, items, drop, words)


def without(_text: str, items: Value, drop: int) -> Splice:
    return positions.without(items, drop)
