"""Text with some servers changed, judged by a parser that had no part in writing it."""

from __future__ import annotations

from corral.clients.corral_path import is_corral
from corral.errors import SandboxError
from corral.formats.positions import Splice, same, splice
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.formats.positions import Format

    Place = tuple[str, ...]
    Words = tuple[str, ...]


DOUBT = "its lines cannot be changed without doubt about the result"
HINT = "write them more simply, or change them by hand"


@record
class Turn:
    """How one server's lines change, and what it is started as afterwards.

    No `words` stand for whatever was recorded, as long as it is not corral.
    """

    splices: tuple[Splice, ...]
    words: tuple[str, ...] | None


def rewrite(text: str, form: Format, turns: Mapping[Place, Turn]) -> tuple[str, frozenset[Place]]:
    """The new text, and the places that changed: all, or all whose result is beyond doubt."""
    new = _turned(text, turns)
    if _is_right(form, text, new, turns):
        return new, frozenset(turns)
    done: dict[Place, Turn] = {}
    new = text
    for at, turn in turns.items():
        tried = {**done, at: turn}
        result = _turned(text, tried)
        if _is_right(form, text, result, tried):
            new, done = result, tried
    return new, frozenset(done)


def _turned(text: str, turns: Mapping[Place, Turn]) -> str:
    return splice(text, [one for turn in turns.values() for one in turn.splices])


def _is_right(form: Format, old: str, new: str, turns: Mapping[Place, Turn]) -> bool:
    """The servers at these places have exactly these words, and nothing else is different."""
    try:
        before, after = form.load(old), form.load(new)
        if not all(_fits(words_at(after, at), turn.words) for at, turn in turns.items()):
            return False
        for at in turns:
            _blank(before, at)
            _blank(after, at)
    except (ValueError, TypeError, KeyError, RecursionError, SandboxError):
        return False
    return same(before, after)


def _fits(found: Words, words: Words | None) -> bool:
    return not is_corral(found[0]) if words is None else found == words


def words_at(data: object, at: Place) -> Words:
    table, key = _table(data, at)
    listed = table.get("args")
    rest = listed if isinstance(listed, list) else []
    return (str(table[key]), *map(str, rest))


def _blank(data: object, at: Place) -> None:
    table, key = _table(data, at)
    table.pop(key)
    table.pop("args", None)


def _table(data: object, at: Place) -> tuple[dict[object, object], str]:
    """What has the program and its arguments, and the key of the program."""
    for name in at:
        if isinstance(data, list):
            named = [item for item in data if isinstance(item, dict) and item.get("name") == name]
            [data] = named
        elif isinstance(data, dict):
            data = data[name]
    if not isinstance(data, dict):
        raise TypeError
    command = data.get("command")
    if isinstance(command, dict):
        return command, "path"
    return data, "command" if "command" in data else "cmd"
