"""Compare a server's definitions with those that the user has seen and pinned."""

import json
from collections.abc import Iterable, Mapping

from corral.record import record
from corral.safe_text import shown

PIN_KINDS = ("tool", "prompt", "template", "instructions")
"""The kinds of definitions that are pinned. Resources are not pinned, because most servers list
files or rows of a database, which change all the time.
"""
MAX_DIFFERENCES = 8
MAX_SHOWN_LENGTH = 160
ABSENT = object()

Pin = tuple[str, str, str]
"""Kind, name and canonical text of one definition."""


@record
class ListMethod:
    """A method that lists definitions. `field` is the field of the result that has the list. `name`
    is the field of each item that has its name.
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
    """Return a text that is equal for equal definitions, whatever the order of their keys."""
    return json.dumps(definition, sort_keys=True, separators=(",", ":"))


def compare_pins(old: Iterable[Pin], new: Iterable[Pin]) -> list[str]:
    """Return a line for each definition that was added or removed, and for each difference in a
    definition that was changed.
    """
    before = {(kind, name): text for kind, name, text in old}
    after = {(kind, name): text for kind, name, text in new}
    lines: list[str] = []
    for key in sorted(before.keys() | after.keys()):
        what = f"{key[0]} {shown(key[1])}" if key[1] else key[0]
        if key not in after:
            lines.append(f"{what} was removed")
        elif key not in before:
            lines.append(f"{what} is new: {shown(after[key], MAX_SHOWN_LENGTH)}")
        elif before[key] != after[key]:
            lines += [f"{what}: {text}" for text in describe_changes(before[key], after[key])]
    return lines


def describe_changes(old: str, new: str) -> list[str]:
    """Return the differences of two canonical texts, one line for each value."""
    found = list(_differences("", json.loads(old), json.loads(new)))
    if len(found) > MAX_DIFFERENCES:
        found[MAX_DIFFERENCES:] = [f"and {len(found) - MAX_DIFFERENCES} more differences"]
    return found


def _differences(path: str, old: object, new: object) -> Iterable[str]:
    """Yield a line for each value that differs. Canonical texts are compared, because in Python
    1 equals True. A key with the value null differs from a missing key, because a model reads the
    key's name.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            inner = f"{path}.{key}" if path else key
            yield from _differences(inner, old.get(key, ABSENT), new.get(key, ABSENT))
    elif (old is ABSENT) != (new is ABSENT) or canonical(old) != canonical(new):
        yield f"{shown(path)[1:-1] or 'text'} was {_shown(old)}, is {_shown(new)}"


def _shown(value: object) -> str:
    if value is ABSENT:
        return "absent"
    text = value if isinstance(value, str) else canonical(value)
    return shown(text, MAX_SHOWN_LENGTH)
