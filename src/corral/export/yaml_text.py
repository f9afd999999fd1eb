"""Format mappings, lists, strings, numbers and booleans as readable YAML, without a library.

A string is written without quotes only if every YAML parser reads it as that string.
"""

import json
import re
from collections.abc import Mapping, Sequence

PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*\Z")
BLOCK = re.compile(r"[!-~][ -~]*\n(?:[ -~]*[!-~]\n)+\Z")
"""Matches strings that can be written as a YAML block. Such a string has two or more lines of
printable characters. None of its lines is empty, and the first is not indented.
"""
LAST_IN_PLANE = 0xFFFF
WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def format_documents(documents: Sequence[Mapping[str, object]]) -> str:
    return "---\n".join("\n".join(_lines(document)) + "\n" for document in documents)


def _lines(value: object) -> list[str]:
    if isinstance(value, Mapping) and value:
        return [line for key, item in value.items() for line in _entry(_scalar(key), item)]
    if isinstance(value, (list, tuple)) and value:
        return [line for item in value for line in _item(_lines(item))]
    return [_scalar(value)]


def _entry(key: str, value: object) -> list[str]:
    if isinstance(value, str) and BLOCK.match(value):
        return [f"{key}: |", *(f"  {line}" for line in value.splitlines())]
    lines = _lines(value)
    if isinstance(value, (Mapping, list, tuple)) and value:
        return [f"{key}:", *(f"  {line}" for line in lines)]
    return [f"{key}: {lines[0]}"]


def _item(lines: list[str]) -> list[str]:
    return [f"- {lines[0]}", *(f"  {line}" for line in lines[1:])]


def _scalar(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if PLAIN.match(value) and value.lower() not in WORDS:
        return value
    return f'"{"".join(map(_character, value))}"'


def _character(one: str) -> str:
    """Escape a character as JSON does, but without surrogate pairs, because YAML does not allow
    them.
    """
    return f"\\U{ord(one):08x}" if ord(one) > LAST_IN_PLANE else json.dumps(one)[1:-1]
