"""Compare a server's definitions with those that the user has seen and pinned."""

import json
from collections.abc import Iterable, Mapping

from corral.record import record
from corral.safe_text import printable, shown

PIN_KINDS = ("tool", "prompt", "template", "instructions")
"""The kinds of definitions that are pinned. Resources are not pinned, because most servers list
files or rows of a database, which change all the time.
"""
MAX_DIFFERENCES = 8
MAX_SHOWN_LENGTH = 160
MAX_PATH_LENGTH = 60
SHOWN_BEFORE = 20
ABSENT = object()

Pin = tuple[str, str, str]
"""Kind, name and canonical text of one definition."""


@record
class ListMethod:
    """A method that lists definitions. `field` is the key of the list in the result, and `name` is
    the key of each item's name.
    """

    kind: str
    field: str
    name: str


LISTS: Mapping[str, ListMethod] = {
    "tools/list": ListMethod(kind="tool", field="tools", name="name"),
    "prompts/list": ListMethod(kind="prompt", field="prompts", name="name"),
    "resources/list": ListMethod(kind="resource", field="resources", name="uri"),
    "resources/templates/list": ListMethod(
        kind="template", field="resourceTemplates", name="uriTemplate"
    ),
}


def list_items(value: Mapping[str, object], field: str) -> list[dict[str, object]]:
    """Return the objects in the list `field` of a result. Leave out items that are not objects."""
    found = value.get(field)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def canonical(definition: object) -> str:
    """Return a definition as canonical text, which does not depend on the order of its keys."""
    return json.dumps(definition, sort_keys=True, separators=(",", ":"))


def group_pins(pins: Iterable[Pin]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Group definitions by kind and name.

    If a server offers several definitions with the same name, all of them are pinned, because
    otherwise the order of the pins would decide which one is valid.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for kind, name, text in pins:
        found.setdefault((kind, name), set()).add(text)
    return {key: tuple(sorted(texts)) for key, texts in found.items()}


def compare_pins(old: Iterable[Pin], new: Iterable[Pin]) -> list[str]:
    """Return a line for each definition that was added or removed, and for each difference in a
    changed definition.
    """
    before, after = group_pins(old), group_pins(new)
    lines: list[str] = []
    for key in sorted(before.keys() | after.keys()):
        what = f"{key[0]} {shown(key[1])}" if key[1] else key[0]
        was, now = before.get(key, ()), after.get(key, ())
        if len(was) == len(now) == 1:
            changes = describe_changes(was[0], now[0])
            lines += [f"{what}: {text}" for text in changes]
            continue
        lost = [f" lost the definition {_show(text)}" for text in was if text not in now]
        lines += [f"{what}{text}" for text in (lost if now else lost and [" was removed"])]
        again = " is offered again, as" if was or len(now) > 1 else " is new:"
        lines += [f"{what}{again} {_show(text)}" for text in now if text not in was]
    return lines


def describe_changes(old: str, new: str) -> list[str]:
    """Return the differences between two canonical texts, one line for each value."""
    found = list(_differences("", json.loads(old), json.loads(new)))
    if len(found) > MAX_DIFFERENCES:
        found[MAX_DIFFERENCES:] = [f"and {len(found) - MAX_DIFFERENCES} more differences"]
    return found


def _differences(path: str, old: object, new: object) -> Iterable[str]:
    """Yield a line for each value that differs.

    Values are compared by their canonical texts, because in Python 1 equals True. A key with the
    value null is not the same as a missing key, because the model sees the key's name.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            inner = f"{path}.{key}" if path else key
            inner = inner[: MAX_PATH_LENGTH + 1]
            yield from _differences(inner, old.get(key, ABSENT), new.get(key, ABSENT))
    elif (old is ABSENT) != (new is ABSENT) or canonical(old) != canonical(new):
        where = printable(path[:MAX_PATH_LENGTH]) + ("..." if len(path) > MAX_PATH_LENGTH else "")
        before, after = _show_both(old, new)
        yield f"{where or 'text'} was {before}, is {after}"


def _show_both(old: object, new: object) -> tuple[str, str]:
    """Describe two values that differ. If the texts are long, show only the part around the first
    difference. Otherwise a server could hide a change behind a long unchanged beginning.
    """
    if old is ABSENT:
        return "absent", _show(_to_text(new))
    if new is ABSENT:
        return _show(_to_text(old)), "absent"
    before, after = _to_text(old), _to_text(new)
    start = 0
    if max(len(before), len(after)) > MAX_SHOWN_LENGTH:
        pairs = enumerate(zip(before, after, strict=False))
        equal = next(
            (at for at, (one, other) in pairs if one != other), min(len(before), len(after))
        )
        start = max(equal - SHOWN_BEFORE, 0)
    return _show(before, start), _show(after, start)


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else canonical(value)


def _show(text: str, start: int = 0) -> str:
    cut = text[start : start + MAX_SHOWN_LENGTH]
    left = len(text) - start - len(cut)
    more = f" and {left} more characters" if left else ""
    return f"{'...' if start else ''}{shown(cut, MAX_SHOWN_LENGTH)}{more}"
