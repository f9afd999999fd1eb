"""Decoded data -> values by the table of keys; goes on after a mistake, to tell all at once."""

from __future__ import annotations

import os

from corral.errors import Mistake
from corral.policy.schema import (
    BY_PATH,
    LONGEST_NAME,
    LONGEST_PATH,
    LONGEST_TEXT,
    MOST_PORTS,
    TABLES,
    VERSION,
    most_items,
)
from corral.safe_text import shown
from corral.units import (
    format_size,
    is_digits,
    parse_cpu,
    parse_cpu_flag,
    parse_duration,
    parse_size,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.policy.schema import Key

NAME_START = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
# Parentheses, because Windows has ProgramFiles(x86).
NAME_REST = NAME_START | frozenset("0123456789()")
MOST_SUGGESTIONS = 50
KINDS_OF_NAMES = ("environment.pass", "environment.set", "environment.secrets")


class Reading:
    """One source being read; `mistakes` grows, and what was wrong is left out of the values."""

    def __init__(
        self,
        origin: str,
        places: Mapping[str, int],
        mistakes: list[Mistake],
        *,
        flags: bool = False,
    ) -> None:
        self.origin = origin
        self.places = places
        self.mistakes = mistakes
        self.flags = flags

    def wrong(self, path: str, text: str) -> None:
        """An item that has no line of its own stands where its list begins."""
        key, bracket, _ = path.partition("[")
        line = self.places.get(path)
        if line is None and bracket:
            line = self.places.get(key)
        if self.flags:
            path = BY_PATH[key].flag or key
        self.mistakes.append(Mistake((self.origin, line, path, text)))

    def document(self, data: object) -> dict[str, object]:
        from corral.policy.manifest import path_text

        if not isinstance(data, dict):
            self.wrong("", f"a policy is a table of keys, not {shown(data)}")
            return {}
        values: dict[str, object] = {}
        for name, value in data.items():
            if name in TABLES and isinstance(value, dict):
                for inner, item in value.items():
                    self.entry((name, inner), item, values)
            elif name in TABLES:
                self.wrong(name, f"is a table of keys, not {shown(value)}")
            else:
                self.entry((name,), value, values)
        if "version" not in data:
            self.wrong(path_text(("version",)), f"is missing: write version = {VERSION}")
        self.across(values)
        return values

    def entry(self, path: tuple[str, ...], item: object, values: dict[str, object]) -> None:
        from corral.policy.manifest import nearest, path_text

        key = BY_PATH.get(".".join(path)) if all("." not in part for part in path) else None
        if key is not None:
            before = len(self.mistakes)
            value = self.value(key, item)
            if len(self.mistakes) == before:
                values[key.path] = value
            return
        advice = ""
        if len(self.mistakes) < MOST_SUGGESTIONS:
            advice = nearest(path[-1], path[0] if len(path) > 1 else "")
        self.wrong(path_text(path), f"unknown key; {advice}" if advice else "unknown key")

    def across(self, values: Mapping[str, object]) -> None:
        """What no key shows by itself."""
        seen: dict[str, str] = {}
        for path in KINDS_OF_NAMES:
            entries = values.get(path)
            for entry in entries if isinstance(entries, tuple) else ():
                name = entry[0] if isinstance(entry, tuple) else entry
                if seen.setdefault(name, path) != path:
                    self.wrong(path, f"{shown(name)} is in {seen[name]} as well")

    def value(self, key: Key, value: object) -> object:
        match key.kind:
            case "variables":
                return self.variables(key, value)
            case "arguments" | "destinations" | "ports" | "paths" | "names" | "controls":
                return self.items(key, value)
            case _:
                try:
                    return scalar(key, value, flags=self.flags)
                except ValueError as error:
                    self.wrong(key.path, str(error))
                    return None

    def items(self, key: Key, value: object) -> tuple[object, ...]:
        if not isinstance(value, (list, tuple)):
            self.wrong(key.path, f"is a list, not {shown(value)}")
            return ()
        if len(value) > most_items(key):
            self.wrong(key.path, f"has {len(value)} entries, more than {most_items(key)}")
            return ()
        if key.kind == "arguments" and not value:
            self.wrong(key.path, "an empty command")
        found: list[object] = []
        for index, entry in enumerate(value):
            try:
                found.append(item(key, entry, flags=self.flags))
            except ValueError as error:
                self.wrong(f"{key.path}[{index}]", str(error))
        if key.kind == "destinations":
            self.count_ports(key, found)
        return tuple(found)

    def count_ports(self, key: Key, entries: list[object]) -> None:
        from corral.network.rules import collect_ports

        if len(collect_ports(map(str, entries), max_ports=MOST_PORTS)) > MOST_PORTS:
            self.wrong(key.path, f"names more than {MOST_PORTS} ports: each costs a listener")

    def variables(self, key: Key, value: object) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, dict):
            self.wrong(key.path, f"is a table of names and texts, not {shown(value)}")
            return ()
        if len(value) > most_items(key):
            self.wrong(key.path, f"has {len(value)} entries, more than {most_items(key)}")
            return ()
        from corral.policy.manifest import path_text

        found: list[tuple[str, str]] = []
        for name, entry in value.items():
            path = path_text((*key.path.split("."), name))
            try:
                found.append((check_name(name), check_text(entry, flags=self.flags)))
            except ValueError as error:
                self.wrong(key.path if self.flags else path, str(error))
        return tuple(found)


def scalar(key: Key, value: object, *, flags: bool) -> object:
    match key.kind:
        case "version":
            if type(value) is not int or value != VERSION:
                raise ValueError(f"{shown(value)} is not {VERSION}, the only version there is")
            return value
        case "switch":
            if not isinstance(value, bool):
                raise ValueError(f"is true or false, not {shown(value)}")  # noqa: TRY004
            return value
        case "choice":
            if not isinstance(value, str) or value not in key.choices:
                raise ValueError(f"{shown(value)} is not one of {', '.join(key.choices)}")
            return value
        case "size":
            return large_enough(key, parse_size(value))
        case "duration":
            return parse_duration(value)
        case "cpu":
            bare = flags and isinstance(value, str)
            return parse_cpu_flag(str(value)) if bare else parse_cpu(value)
        case _:
            return count(key, value, flags=flags)


def large_enough(key: Key, amount: int | None) -> int | None:
    if amount is not None and amount < key.smallest:
        raise ValueError(
            f"{amount} bytes is less than {format_size(key.smallest)}; is a unit missing, as in"
            f" {amount}M?"
        )
    return amount


def count(key: Key, value: object, *, flags: bool) -> int | None:
    if value == "none":
        return None
    if flags and isinstance(value, str) and is_digits(value) and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f'is a whole number or "none", not {shown(value)}')  # noqa: TRY004
    if not key.smallest <= value <= key.largest:
        raise ValueError(f"{shown(value)} is not from {key.smallest} to {key.largest}")
    return value


def item(key: Key, value: object, *, flags: bool) -> object:
    match key.kind:
        case "ports":
            return port(value, flags=flags)
        case "names":
            return check_name(value)
        case "controls":
            if not isinstance(value, str) or value not in key.choices:
                raise ValueError(f"{shown(value)} is not one of {', '.join(key.choices)}")
            return value
        case "destinations":
            return destination(check_text(value, flags=False))
        case "arguments":
            return check_text(value, flags=flags)
        case _:
            text = check_text(value, flags=flags)
            if not text or len(text) > LONGEST_PATH:
                raise ValueError("an empty path" if not text else f"{shown(text)} is too long")
            return text


def destination(text: str) -> str:
    from corral.network.rules import parse_entry

    return str(parse_entry(text))


def port(value: object, *, flags: bool) -> int:
    if flags and isinstance(value, str) and is_digits(value) and len(value) <= 5:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
        raise ValueError(f"{shown(value)} is not a port (1 to 65535)")
    return value


def check_name(value: object) -> str:
    text = value if isinstance(value, str) else ""
    if text[:1] not in NAME_START or not NAME_REST.issuperset(text) or len(text) > LONGEST_NAME:
        raise ValueError(f"{shown(value)} is not the name of an environment variable")
    return text


def check_text(value: object, *, flags: bool) -> str:
    """Text that can be an argument, a path or an environment value on any system.

    The messages leave it out: it may be a value that nobody wants in a terminal or a log.
    """
    if not isinstance(value, str):
        raise ValueError(f"is a text, not {shown(value)}")  # noqa: TRY004
    if "\0" in value:
        raise ValueError("has a NUL byte in it")
    try:
        # The command line may carry bytes that are no UTF-8; a file that says it is UTF-8 may not.
        encoded = os.fsencode(value) if flags else value.encode()
    except UnicodeEncodeError:
        raise ValueError("is not valid text") from None
    if len(encoded) > LONGEST_TEXT:
        raise ValueError("is longer than a program can be given")
    return value
