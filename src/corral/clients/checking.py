"""Is the new text what was meant? Judged by a parser that had no part in writing it."""

from __future__ import annotations

from corral.clients.executable import is_corral
from corral.clients.located import same
from corral.errors import SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.clients.located import Format

    Place = tuple[str, ...]
    Words = tuple[str, ...]


def check(form: Format, old: str, new: str, meant: Mapping[Place, Words | None]) -> None:
    """The servers at these places have exactly these words, and nothing else is different.

    None stands for whatever was recorded, as long as it is not corral.
    """
    try:
        before, after = form.load(old), form.load(new)
        right = all(_is_right(words_at(after, at), words) for at, words in meant.items())
    except (ValueError, TypeError, KeyError, RecursionError, SandboxError):
        right, before, after = False, None, None
    for at in meant if right else ():
        _blank(before, at)
        _blank(after, at)
    if not right or not same(before, after):
        raise SandboxError(
            "its lines cannot be changed without doubt about the result",
            hint="write them more simply, or change them by hand",
        )


def _is_right(found: Words, words: Words | None) -> bool:
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
