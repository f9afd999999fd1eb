"""Read and edit JSON. Comments and trailing commas are allowed, because clients accept them."""

import json
import re
from collections.abc import Sequence

from corral.formats import positions
from corral.formats.positions import BrokenFileError, Container, Path, Value, Wanted, everything

prepend, without = positions.prepend, positions.without

MAX_DEPTH = 200
"""The maximum nesting in clients' files, whose values other modules visit recursively."""
PROTOTYPE = "__proto__"
"""In VS Code's parser, a table with this key inherits the keys of the value. These could be servers
that corral does not see.
"""
# The quantifiers are possessive, because backtracking would need much memory for long texts.
TOKEN = re.compile(
    r"""(?P<skip>(?:[ \t\r\n]++|//[^\r\n\u2028\u2029]*+(?=\r?\n|\Z)|/\*(?:[^*]++|\*(?!/))*+\*/)++)
    |(?P<string>"(?:[^"\\\x00-\x1f]++|\\.)*+")
    |(?P<word>-?[0-9][0-9.eE+-]*|true|false|null)
    |(?P<mark>[][{},:])""",
    re.VERBOSE,
)
# `load` removes comments and trailing commas with these expressions, and not with Reader, so that
# corral can compare the results of both.
STRING_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\]++)*+")|//[^\n]*|/\*.*?\*/', re.DOTALL)
STRING_OR_COMMA = re.compile(r'("(?:\\.|[^"\\]++)*+")|,(?=\s*[\]}])')


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


STRICT = json.JSONDecoder(parse_constant=_refuse)


class Reader:
    """Reads one JSON text. A repeated key is an error. If the caller passes a list `repeated`, such
    keys are added to this list instead.
    """

    def __init__(
        self,
        text: str,
        wanted: Wanted | None = None,
        *,
        max_depth: int = MAX_DEPTH,
        repeated: list[tuple[Path, int]] | None = None,
    ) -> None:
        self.text = text
        self.wanted = wanted
        self.max_depth = max_depth
        self.repeated = repeated
        self.outer: list[Container] = []
        self.at = 1 if text.startswith("\ufeff") else 0
        self.kind = ""
        self.strict = True
        self.start = self.at
        self.end = self.at
        self.step()

    def step(self) -> None:
        """Go to the next token, past white space and comments. At the end of the text, `kind` is
        "".
        """
        while True:
            if self.at >= len(self.text):
                self.kind, self.start, self.end = "", len(self.text), len(self.text)
                return
            found = TOKEN.match(self.text, self.at)
            if found is None or found.lastgroup is None:
                raise self.error(self.at, self.describe_text())
            self.at = found.end()
            if found.lastgroup != "skip":
                break
        self.start, self.end = found.span()
        self.kind = found[0] if found.lastgroup == "mark" else found.lastgroup

    def describe_text(self) -> str:
        char = self.text[self.at]
        if char == '"':
            return "this string does not end on its line"
        if self.text.startswith("/*", self.at):
            return "this comment does not end"
        if self.text.startswith("//", self.at):
            # For some clients the comment ends at this line break. They would read the rest of the
            # comment as values.
            return "this comment contains a line break that not all clients know"
        return f"{char!r} is not allowed here"

    def error(self, at: int, what: str) -> BrokenFileError:
        if at >= len(self.text):
            what = "the file ends in the middle of a value"
        return BrokenFileError(what, positions.line_and_column(self.text, at))

    def document(self) -> Value:
        found = self.value()
        if self.kind:
            raise self.error(self.start, "there is text after the end of the value")
        return found

    def value(self) -> Value:
        key = -1
        while True:
            found = self.scalar_or_unwanted(key)
            if found is None:
                self.outer.append(Container(self.kind, self.start, key))
                self.step()
            while True:
                if found is not None:
                    if not self.outer:
                        return found
                    self.add(found)
                if self.kind != self.outer[-1].closing:
                    break
                found = self.outer.pop().close(self.end)
                self.step()
            key = self.member() if self.outer[-1].is_table else -1

    def scalar_or_unwanted(self, key: int) -> Value | None:
        """Read a scalar, or a whole list or table in which no positions are needed. For any other
        list or table, read nothing and return None.
        """
        if len(self.outer) > self.max_depth:
            raise self.error(self.start, "the values are nested too deeply")
        if self.kind in {"{", "["}:
            return self.unwanted(key)
        if self.kind not in {"string", "word"}:
            raise self.error(self.start, "a value is missing here")
        found = Value(data=self.scalar(), start=self.start, end=self.end, key=key)
        self.step()
        return found

    def unwanted(self, key: int) -> Value | None:
        """Read a whole list or table with `json`, which is faster for large files. Return None if
        positions inside it are needed, or if it is not plain JSON.
        """
        if self.wanted is None or not self.strict:
            return None
        if self.wanted(tuple(name for one in self.outer for name in one.path)):
            return None
        try:
            data: object
            data, self.at = STRICT.raw_decode(self.text, self.start)
        except (ValueError, RecursionError):
            self.strict = False  # there is a comment or a mistake, so read token by token
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
            raise self.error(self.start, "this is not a JSON value") from None
        return found

    def member(self) -> int:
        """Read a key of the innermost table and return the key's position."""
        if self.kind != "string":
            raise self.error(self.start, "a key in double quotes is missing here")
        key, name = self.start, str(self.scalar())
        if name == PROTOTYPE:
            raise self.error(key, f"some clients read the key {name!r} as a part of its table")
        self.outer[-1].path = (name,)
        if name in self.outer[-1].members:
            if self.repeated is None:
                raise self.error(key, f"the key {name!r} appears twice")
            deep = len(self.outer) > positions.MAX_LINE_DEPTH
            self.repeated.append(((name,) if deep else self.path(), key))
        self.step()
        if self.kind != ":":
            raise self.error(self.start, "':' is missing here")
        self.step()
        return key

    def path(self) -> Path:
        return tuple(one.path[0] if one.is_table else len(one.items) for one in self.outer)

    def add(self, found: Value) -> None:
        """Add a value to the innermost list or table, and read the comma after it."""
        inner = self.outer[-1]
        if inner.is_table:
            inner.members[inner.path[0]] = found
        else:
            inner.items.append(found)
        if self.kind == ",":
            self.step()
        elif self.kind != inner.closing:
            raise self.error(self.start, f"',' or {inner.closing!r} is missing here")


def read(text: str, wanted: Wanted = everything) -> Value:
    return Reader(text, wanted).document()


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
    alone = positions.indent(text, after.key)
    gap = " " if alone is None else positions.newline(text) + alone
    return f",{gap}{quote(name)}: [{', '.join(words)}]"
