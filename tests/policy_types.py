"""Generate the Python types of a policy from the schema.

`python3 tests/policy_types.py` writes them to src/corral/api/policy_dict.py.
"""

import keyword
import pathlib

from corral.policy.schema import KEYS, TABLES, Key

FILE = pathlib.Path(__file__).resolve().parent.parent / "src/corral/api/policy_dict.py"
TYPES = {
    "version": "Literal[1]", "size": "int | str", "duration": "str", "cpu": "float | str",
    "count": 'int | Literal["none"]', "switch": "bool", "arguments": "Sequence[str]",
    "destinations": "Sequence[str]", "ports": "Sequence[int]", "paths": "Sequence[str]",
    "names": "Sequence[str]", "variables": "Mapping[str, str]", "controls": '"Sequence[Control]"',
    "patterns": "Sequence[str]",
}  # fmt: skip
HEAD = '''"""Define the type of a policy mapping. tests/policy_types.py makes it from policy/schema.py."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from corral.policy.model import Control
'''


def type_of(key: Key) -> str:
    if key.kind in TYPES:
        return TYPES[key.kind]
    return "Literal[" + ", ".join(f'"{choice}"' for choice in key.choices) + "]"


def render() -> str:
    """Return the source code of the module that defines the types."""
    tables: dict[str, list[tuple[str, str]]] = {path: [] for path in ("", *TABLES)}
    for key in KEYS:
        table, _, name = key.path.rpartition(".")
        tables[table].append((name, type_of(key)))
    for path in TABLES:
        table, _, name = path.rpartition(".")
        tables[table].append((name, type_name(path)))
    # A type has to be defined before its first use, so nested tables come first and the policy comes last.
    # Tables with the same type are written once.
    order = sorted(tables, key=lambda path: -path.count(".") if path else 1)
    return HEAD + "".join(
        dict.fromkeys(render_table(type_name(path), tables[path]) for path in order)
    )


def type_name(path: str) -> str:
    table, nested, _ = path.partition(".")
    return f"{table.title() or 'Policy'}{'Patterns' if nested else ''}Dict"


def render_table(name: str, rows: list[tuple[str, str]]) -> str:
    # A key such as `pass` is a Python keyword, so it cannot be a field in a class statement.
    if any(keyword.iskeyword(key) for key, _ in rows):
        pairs = ", ".join(f'"{key}": {text}' for key, text in rows)
        return f'\n\n{name} = TypedDict(\n    "{name}",\n    {{{pairs}}},\n    total=False,\n)\n'
    return f"\n\nclass {name}(TypedDict, total=False):\n" + "".join(
        f"    {key}: {text}\n" for key, text in rows
    )


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
