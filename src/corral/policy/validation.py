"""Convert decoded TOML, JSON or flags to the values of policy keys, and collect all mistakes."""

from __future__ import annotations

import os

from corral.errors import Mistake
from corral.policy.schema import (
    BY_PATH,
    KEYS,
    LISTS,
    MAX_NAME_LENGTH,
    MAX_PATH_LENGTH,
    MAX_PATTERN_LENGTH,
    MAX_PORTS,
    MAX_TEXT_LENGTH,
    TABLES,
    VERSION,
    max_items,
)
from corral.safe_text import shown
from corral.units import (
    MAX_DIGITS,
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

    from corral.formats.positions import Path
    from corral.policy.schema import Key

NAME_START = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
# Parentheses are allowed because Windows has a variable named ProgramFiles(x86).
NAME_REST = NAME_START | frozenset("0123456789()")
MAX_SUGGESTIONS = 50
PLAIN = NAME_START | frozenset("0123456789-")
NAMES_OF_VARIABLES = ("environment.pass", "environment.set", "environment.secrets")


class Validator:
    """Checks one source of a policy, such as a file. Mistakes are added to `mistakes`, and invalid
    values are left out.
    """

    def __init__(
        self, origin: str, lines: Mapping[str, int], mistakes: list[Mistake], *, flags: bool = False
    ) -> None:
        self.origin = origin
        self.lines = lines
        self.mistakes = mistakes
        self.flags = flags

    def add(self, path: str, text: str) -> None:
        """Add a mistake. If an item's line is not known, report it at the line of its list."""
        key, bracket, _ = path.partition("[")
        line = self.lines.get(path)
        if line is None and bracket:
            line = self.lines.get(key)
        if self.flags:
            path = BY_PATH[key].flag or key
        self.mistakes.append(Mistake((self.origin, line, path, text)))

    def document(self, data: object) -> dict[str, object]:
        if not isinstance(data, dict):
            self.add("", f"a policy must be a table of keys, not {shown(data)}")
            return {}
        values: dict[str, object] = {}
        self.table((), data, values)
        if "version" not in data:
            self.add("version", f"is missing: write version = {VERSION}")
        self.check_variables(values)
        return values

    def table(
        self, table: tuple[str, ...], data: Mapping[str, object], values: dict[str, object]
    ) -> None:
        for name, item in data.items():
            path = (*table, name)
            if "." in name or ".".join(path) not in TABLES:
                self.member(path, item, values)
            elif isinstance(item, dict):
                self.table(path, item, values)
            else:
                self.add(format_path(path), f"must be a table of keys, not {shown(item)}")

    def member(self, path: tuple[str, ...], item: object, values: dict[str, object]) -> None:
        key = BY_PATH.get(".".join(path)) if all("." not in part for part in path) else None
        if key is not None:
            before = len(self.mistakes)
            value = self.value(key, item)
            if len(self.mistakes) == before:
                values[key.path] = value
            return
        advice = ""
        if len(self.mistakes) < MAX_SUGGESTIONS:
            advice = suggest_key(path[-1], ".".join(path[:-1]))
        self.add(format_path(path), f"unknown key; {advice}" if advice else "unknown key")

    def check_variables(self, values: Mapping[str, object]) -> None:
        """Refuse an environment variable that occurs in more than one of the keys in
        NAMES_OF_VARIABLES.
        """
        seen: dict[str, str] = {}
        for path in NAMES_OF_VARIABLES:
            entries = values.get(path)
            for entry in entries if isinstance(entries, tuple) else ():
                name = entry[0] if isinstance(entry, tuple) else entry
                if seen.setdefault(name, path) != path:
                    self.add(path, f"{shown(name)} is in {seen[name]} as well")

    def value(self, key: Key, value: object) -> object:
        if key.kind == "variables":
            return self.variables(key, value)
        if key.kind in LISTS:
            return self.items(key, value)
        try:
            return parse_scalar(key, value, flags=self.flags)
        except ValueError as error:
            self.add(key.path, str(error))
            return None

    def items(self, key: Key, value: object) -> tuple[object, ...]:
        if not isinstance(value, (list, tuple)):
            self.add(key.path, f"must be a list, not {shown(value)}")
            return ()
        if self.has_too_many(key, len(value)):
            return ()
        if key.kind == "arguments" and not value:
            self.add(key.path, "must not be empty")
        found: list[object] = []
        for index, entry in enumerate(value):
            try:
                found.append(parse_item(key, entry, flags=self.flags))
            except ValueError as error:
                self.add(f"{key.path}[{index}]", str(error))
        if key.kind == "destinations":
            from corral.network.rules import collect_ports

            if len(collect_ports(map(str, found), max_ports=MAX_PORTS)) > MAX_PORTS:
                self.add(key.path, f"names more than {MAX_PORTS} ports: each needs a listener")
        return tuple(found)

    def has_too_many(self, key: Key, count: int) -> bool:
        if count > max_items(key):
            self.add(key.path, f"has {count} entries, more than {max_items(key)}")
        return count > max_items(key)

    def variables(self, key: Key, value: object) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, dict):
            self.add(key.path, f"must be a table of names and strings, not {shown(value)}")
            return ()
        if self.has_too_many(key, len(value)):
            return ()
        found: list[tuple[str, str]] = []
        for name, entry in value.items():
            path = format_path((*key.path.split("."), name))
            try:
                found.append((check_name(name), check_text(entry, flags=self.flags)))
            except ValueError as error:
                self.add(key.path if self.flags else path, str(error))
        return tuple(found)


def format_path(path: Path) -> str:
    """Format a path such as (`network`, `allow`, 2) as `network.allow[2]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = part and len(part) <= 80 and PLAIN.issuperset(part)
            text += ("." if text else "") + (part if plain else shown(part))
    return text


def suggest_key(unknown: str, table: str) -> str:
    """Return a hint for an unknown key. Suggest a similar key, or else list all known keys of the
    table. If these are too many, return "".
    """
    import difflib

    word = unknown[:80]
    siblings = [path for path in (*BY_PATH, *TABLES) if path.rpartition(".")[0] == table]
    names = [path.rpartition(".")[2] for path in siblings]
    if close := difflib.get_close_matches(word, names, 1, 0.6):
        return f"did you mean {close[0]}?"
    everywhere = {key.path.rpartition(".")[2]: key.path for key in reversed(KEYS)}
    if close := difflib.get_close_matches(word, list(everywhere), 1, 0.7):
        return f"did you mean {everywhere[close[0]]}?"
    return f"known here: {', '.join(names)}" if len(names) < 12 else ""


def parse_scalar(key: Key, value: object, *, flags: bool) -> object:
    match key.kind:
        case "version":
            if type(value) is not int or value != VERSION:
                raise ValueError(f"must be {VERSION}, the only version, not {shown(value)}")
            return value
        case "switch":
            if not isinstance(value, bool):
                raise ValueError(f"must be true or false, not {shown(value)}")  # noqa: TRY004
            return value
        case "choice":
            return check_choice(key, value)
        case "count":
            return parse_count(key, value, flags=flags)
        case _:
            return parse_amount(key, value, flags=flags)


def parse_amount(key: Key, value: object, *, flags: bool) -> int | None:
    try:
        if key.kind == "duration":
            return parse_duration(value)
        if key.kind == "cpu":
            bare = flags and isinstance(value, str)
            return parse_cpu_flag(str(value)) if bare else parse_cpu(value)
        size = parse_size(value)
    except ValueError as error:
        raise ValueError(f"{shown(value)} {error}") from None
    if size is not None and size < key.minimum:
        raise ValueError(
            f"{size} bytes is less than {format_size(key.minimum)}; is a unit missing, as in"
            f" {size}M?"
        )
    return size


def parse_count(key: Key, value: object, *, flags: bool) -> int | None:
    if value == "none":
        return None
    if flags and isinstance(value, str) and is_digits(value) and len(value) <= MAX_DIGITS:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f'must be a whole number or "none", not {shown(value)}')  # noqa: TRY004
    if not key.minimum <= value <= key.maximum:
        raise ValueError(f"must be from {key.minimum} to {key.maximum}, not {shown(value)}")
    return value


def parse_item(key: Key, value: object, *, flags: bool) -> object:
    match key.kind:
        case "ports":
            if flags and isinstance(value, str) and is_digits(value) and len(value) <= 5:
                value = int(value)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
                raise ValueError(f"{shown(value)} is not a port (1 to 65535)")
            return value
        case "names":
            return check_name(value)
        case "controls":
            return check_choice(key, value)
        case "destinations":
            from corral.network.rules import parse_entry

            return str(parse_entry(check_text(value, flags=False)))
        case "arguments":
            return check_text(value, flags=flags)
        case "patterns":
            text = check_text(value, flags=flags)
            if not text or len(text) > MAX_PATTERN_LENGTH:
                raise ValueError(f"{shown(text)} is not a name or a pattern")
            return text
        case _:
            text = check_text(value, flags=flags)
            if not text or len(text) > MAX_PATH_LENGTH:
                raise ValueError("an empty path" if not text else f"{shown(text)} is too long")
            return text


def check_choice(key: Key, value: object) -> str:
    if not isinstance(value, str) or value not in key.choices:
        raise ValueError(f"{shown(value)} is not one of {', '.join(key.choices)}")
    return value


def check_name(value: object) -> str:
    text = value if isinstance(value, str) else ""
    if text[:1] not in NAME_START or not NAME_REST.issuperset(text) or len(text) > MAX_NAME_LENGTH:
        raise ValueError(f"{shown(value)} is not the name of an environment variable")
    return text


def check_text(value: object, *, flags: bool) -> str:
    """Return `value` if it can be an argument, a path or the value of an environment variable on
    every system. Otherwise raise ValueError.

    The error does not quote a string, because it may be a secret.
    """
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {shown(value)}")  # noqa: TRY004
    if "\0" in value:
        raise ValueError("contains a NUL byte")
    try:
        # Only arguments on the command line may contain bytes that are not UTF-8; files must not.
        encoded = os.fsencode(value) if flags else value.encode()
    except UnicodeEncodeError:
        raise ValueError("is not valid text") from None
    if len(encoded) > MAX_TEXT_LENGTH:
        raise ValueError("is too long for an argument or an environment variable")
    return value
