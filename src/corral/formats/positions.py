"""Values with their places: what an editor of somebody else's file needs, and no parser keeps.

Every format reads its text into `Value`s. A change is a list of `Splice`s of the text itself, so
whatever is not touched stays byte for byte: comments, order, indentation, line endings.
"""

from __future__ import annotations

from corral.errors import SandboxError
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Wanted = Callable[[tuple[str, ...]], bool]


def everything(_keys: tuple[str, ...]) -> bool:
    return True


class BrokenFileError(SandboxError):
    """A file that is not what its name says. `place` counts lines and columns from one."""

    def __init__(self, what: str, place: tuple[int, int] | None = None) -> None:
        super().__init__(what if place is None else f"line {place[0]}, column {place[1]}: {what}")


@record
class Value:
    """`start` and `end` are its own span; `key` is where the key of a member begins, else -1.

    A table that TOML spreads over several headers has no span: -1. `shared` says that other
    places in the file mean this very value (a YAML alias), so that it cannot be changed here.
    """

    data: object
    start: int = -1
    end: int = -1
    key: int = -1
    members: Mapping[str, Value] | None = None
    items: Sequence[Value] | None = None
    flow: bool = True
    shared: bool = False


@record
class Splice:
    start: int
    end: int
    text: str


def splice(text: str, changes: Sequence[Splice]) -> str:
    """All at once; the places are those of the text before any of them."""
    for change in sorted(changes, key=lambda one: one.start, reverse=True):
        text = text[: change.start] + change.text + text[change.end :]
    return text


def place(text: str, at: int) -> tuple[int, int]:
    line = text.count("\n", 0, at)
    return line + 1, at - (text.rfind("\n", 0, at) + 1) + 1


def newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def indent(text: str, at: int) -> str | None:
    """The white space before `at` if nothing else stands before it on its line."""
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return None if before.strip(" \t\ufeff") else before.lstrip("\ufeff")


def prepend(text: str, items: Value, drop: int, words: Sequence[str]) -> Splice:
    """For lists in brackets: one item a line if they stood so, all in one line otherwise."""
    found = items.items or ()
    if not found:
        return Splice(start=items.start + 1, end=items.start + 1, text=", ".join(words))
    first = found[0].start
    alone = indent(text, first)
    comma = ", " if alone is None else f",{newline(text)}{alone}"
    if drop >= len(found):
        return Splice(start=first, end=found[-1].end, text=comma.join(words))
    return Splice(start=first, end=found[drop].start, text=comma.join([*words, ""]))


def without(items: Value, drop: int) -> Splice:
    found = items.items or ()
    if drop >= len(found):
        return Splice(start=items.start + 1, end=items.end - 1, text="")
    return Splice(start=found[0].start, end=found[drop].start, text="")


def escaped(text: str) -> str:
    """In double quotes, for TOML and YAML: both know these escapes and mean the same by them."""
    return '"' + "".join(map(_letter, text)) + '"'


def _letter(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char == " " or (char.isprintable() and char != "\ufeff"):
        return char
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}"


def same(one: object, other: object) -> bool:
    """Like `==`, but true is not 1, and what is no number is itself."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or repr(one) == repr(other))
