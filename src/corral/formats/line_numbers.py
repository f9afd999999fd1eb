"""Where each key of a policy file stands: key path -> line, for text that its parser has accepted.

`tomllib` and `json` keep no positions. One scanner serves both notations, because they differ only
in how a key is written. It never guesses: what it cannot read it leaves out, and if anything that
it found is not in the parsed data, all of it is thrown away. No line is better than a wrong one.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    Path = tuple[str | int, ...]

# No key of the schema lies deeper; longer paths would let deep nesting cost memory by its square.
DEEPEST = 4
BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class Unsure(Exception):  # noqa: N818 - not an error: the scanner's way of saying that it does not know
    pass


class Scanner:
    """Walks over accepted text once, without recursion: nesting is the attacker's to choose."""

    def __init__(self, text: str, *, toml: bool) -> None:
        self.text = text
        self.toml = toml
        self.at = 0
        self.line = 1
        self.places: dict[Path, int] = {}
        self.repeated: list[tuple[Path, int]] = []

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip(self, *, newlines: bool = True) -> None:
        while char := self.peek():
            if char == "\n" and newlines:
                self.line += 1
            elif char == "#" and self.toml:
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
                continue
            elif char not in " \t\r":
                return
            self.at += 1

    def quoted(self) -> str:
        """Move past a string and return its source between the quotes."""
        mark = self.peek()
        if self.toml and self.text.startswith(mark * 3, self.at):
            mark *= 3
        start = self.at + len(mark)
        end = start
        while not self.text.startswith(mark, end):
            if end >= len(self.text):
                raise Unsure
            end += 2 if self.text[end] == "\\" and mark[0] == '"' else 1
        self.at = end + len(mark)
        # Up to two quotes may stand right before the three that close.
        while len(mark) == 3 and self.peek() == mark[0] and self.at < end + 5:
            self.at += 1
        self.line += self.text.count("\n", start, self.at)
        return self.text[start:end]

    def part(self) -> str | None:
        """One part of a key; None if it is written with escapes that only TOML's parser knows."""
        if self.peek() == '"' or (self.toml and self.peek() == "'"):
            literal = self.peek() == "'"
            source = self.quoted()
            if "\\" not in source or literal:
                return source
            return None if self.toml else decoded(source)
        start = self.at
        while self.peek() and self.peek() in BARE:
            self.at += 1
        if start == self.at:
            raise Unsure
        return self.text[start : self.at]

    def key(self, prefix: Path | None, end: str) -> Path | None:
        """Read a key up to and including `end`, note where each of its parts was first seen."""
        path = prefix
        line = self.line
        while True:
            self.skip(newlines=not self.toml)
            name = self.part()
            path = below(path, name)
            self.skip(newlines=not self.toml)
            following = self.peek()
            self.at += 1
            if path is not None:
                self.note(path, line, whole=following == end)
            if following == end:
                return path
            if following != "." or not self.toml:
                raise Unsure

    def note(self, path: Path, line: int, *, whole: bool) -> None:
        if whole and path in self.places and not self.toml:
            self.repeated.append((path, line))
        self.places.setdefault(path, line)

    def value(self, path: Path | None) -> None:
        stack: list[tuple[str, Path | None, int]] = []
        fresh = True
        while True:
            self.skip()
            char = self.peek()
            if fresh and char not in "]}":
                fresh = False
                if stack:
                    path = self.enter(stack)
                    self.skip()
                    char = self.peek()
            if char and char in "[{":
                stack.append((char, path, 0))
                fresh = True
                self.at += 1
                continue
            if not char:
                raise Unsure
            if char in "]}":
                stack.pop()
                fresh = False
                self.at += 1
            elif char == ",":
                fresh = True
                self.at += 1
                continue
            else:
                self.scalar(char)
            if not stack:
                return

    def enter(self, stack: list[tuple[str, Path | None, int]]) -> Path | None:
        """The path of the next value in the innermost list or table."""
        opener, parent, count = stack[-1]
        if opener == "{":
            return self.key(parent, "=" if self.toml else ":")
        stack[-1] = (opener, parent, count + 1)
        path = below(parent, count)
        if path is not None:
            self.places[path] = self.line
        return path

    def scalar(self, char: str) -> None:
        if char in "\"'":
            self.quoted()
            return
        start = self.at
        while (char := self.peek()) and char not in ",]}#\n":
            self.at += 1
        if start == self.at:
            raise Unsure

    def document(self) -> None:
        prefix: Path | None = ()
        while True:
            self.skip()
            if not self.peek():
                return
            if self.text.startswith("[[", self.at):
                # The schema has no arrays of tables: what is in them is unknown anyway.
                self.at += 2
                self.key(None, "]")
                self.at += 1
                prefix = None
            elif self.peek() == "[":
                self.at += 1
                prefix = self.key((), "]")
            else:
                self.value(self.key(prefix, "="))


def below(parent: Path | None, part: str | int | None) -> Path | None:
    if parent is None or part is None or len(parent) >= DEEPEST:
        return None
    return (*parent, part)


def decoded(source: str) -> str | None:
    import json

    text: object = json.loads(f'"{source}"')
    return text if isinstance(text, str) else None


def holds(data: object, path: Path) -> bool:
    for part in path:
        if isinstance(part, str):
            if not isinstance(data, dict) or part not in data:
                return False
            data = data[part]
        else:
            if not isinstance(data, list) or part >= len(data):
                return False
            data = data[part]
    return True


def find(
    text: str, data: object, *, toml: bool
) -> tuple[Mapping[Path, int], list[tuple[Path, int]]]:
    """(path -> line, keys written twice with the line of the second), as far as it is sure."""
    scanner = Scanner(text, toml=toml)
    try:
        if toml:
            scanner.document()
        else:
            scanner.value(())
    except (Unsure, IndexError):
        return {}, []
    if not all(holds(data, path) for path in scanner.places):
        return {}, scanner.repeated
    return scanner.places, scanner.repeated
