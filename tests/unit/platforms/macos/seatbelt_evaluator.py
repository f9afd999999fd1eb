"""Evaluate Seatbelt profiles in a model of SBPL. The model covers only the part of SBPL that corral
uses.

The last matching rule for the operation itself decides. If there is none, the last matching rule
for the operation's class decides, then the rules for wider classes, and finally the rules for
`default`. `(version 1)` adds rules before the profile, and a few rules after it. A rule without
filters applies to everything. Unknown words are errors, so that no rule is skipped.

The model has not been compared with a Mac. Seatbelt may instead let the last of all matching rules
decide, so the model raises an error if that would give a different verdict.
"""

from __future__ import annotations

import dataclasses
import re

import seatbelt_tables as tables

TOKEN = re.compile(r'\s*(?:(\()|(\))|#"([^"]*)"|"([^"\\]*)"|([^\s()"\\#]+))')
COMBINATORS = {"require-all": all, "require-any": any, "require-not": lambda found: not any(found)}


class Text(str):
    """A string in the profile. Names in the profile are plain `str` objects."""


def parse(text: str) -> list:
    """Return the expressions in a string. An unbalanced quote or bracket is an error."""
    stack: list[list] = [[]]
    at = 0
    text = text.rstrip()
    while at < len(text):
        found = TOKEN.match(text, at)
        if not found:
            raise ValueError(f"not SBPL: {text[at : at + 40]!r}")
        at = found.end()
        opened, closed, expression, quoted, name = found.groups()
        if opened:
            stack.append([])
        elif closed:
            done = stack.pop()
            stack[-1].append(done)
        else:
            word = Text(quoted) if quoted is not None else name
            stack[-1].append(word if expression is None else re.compile(expression))
    if len(stack) != 1:
        raise ValueError("not SBPL: a bracket is left open")
    return stack[0]


@dataclasses.dataclass(frozen=True)
class Act:
    """An action that a process attempts.

    `socket` is "unix" with a `path`, or "ip", "tcp" or "udp" with a `host` and a `port`. The host
    "localhost" means any of the Mac's own addresses. `target` is "self", "same-sandbox" or
    "others". `vnode` is the type of the file at the path.
    """

    operation: str
    path: str = ""
    name: str = ""
    target: str = "others"
    socket: str = ""
    host: str = ""
    port: int = 0
    vnode: str = "REGULAR-FILE"


class Profile:
    """A parsed profile. `known` lists the operations that one release of macOS defines."""

    def __init__(
        self,
        text: str,
        parameters: tuple[tuple[str, str], ...],
        known: frozenset[str] = tables.SONOMA,
    ) -> None:
        version, *rules = parse(text)
        assert version == ["version", "1"]
        self.known = known
        self.parameters = dict(parameters)
        assert len(self.parameters) == len(parameters), "a parameter is named twice"
        self.used: set[str] = set()
        self.stated = [found for item in rules if (found := self.rule(item))]
        assert self.stated[0] == ("deny", ("default",), ())
        assert self.used == set(self.parameters), "a parameter that no rule uses"
        here = [name for name in tables.ALLOWED_BY_VERSION_1 if name in known]
        self.rules = [("allow", tuple(here), ()), *self.stated]
        own = tuple(name for name in tables.ALLOWED_FOR_SELF if name in known)
        self.rules.append(("allow", own, (("target", "self"),)))

    def rule(self, item: list) -> tuple | None:
        """Return a rule as (action, operations, filters), or None if its `defined?` condition is
        false.
        """
        if item[0] == "if":
            _, (asked, name), item = item
            assert asked == "defined?"
            assert name == f"'{item[1]}"
            if item[1] not in self.known:
                return None
        action, *rest = item
        assert action in {"allow", "deny"}
        operations = tuple(tables.ALIASES.get(word, word) for word in rest if isinstance(word, str))
        assert operations, item
        assert self.known.issuperset(operations), f"unbound variable: {operations}"
        filters = tuple(self.resolve(word) for word in rest if isinstance(word, list))
        for operation in operations:
            assert all(kinds_of(item) <= taken_by(operation) for item in filters), item
        return action, operations, filters

    def resolve(self, item: list) -> tuple:
        """Return a filter in which each parameter is replaced by its value. The value is not parsed
        as part of the profile.
        """
        if item[0] == "param":
            self.used.add(item[1])
            return Text(self.parameters[item[1]])
        return tuple(self.resolve(part) if isinstance(part, list) else part for part in item)

    def allows(self, act: Act) -> bool:
        """Return whether the profile allows the act. Raise an error if this macOS release does not
        define the operation.
        """
        operation = tables.ALIASES.get(act.operation, act.operation)
        levels = classes_of(operation, self.known)
        found = [
            (min(levels.index(name) for name in covering), action)
            for action, operations, filters in self.rules
            if (covering := [name for name in operations if name in levels])
            and (not filters or any(matches(item, act) for item in filters))
        ]
        nearest = min(level for level, _ in found)
        verdict = [action for level, action in found if level == nearest][-1]
        ordered = [action for level, action in found if level < len(levels) - 1] or [verdict]
        assert verdict == ordered[-1], act
        return verdict == "allow"


def classes_of(operation: str, known: frozenset[str]) -> list[str]:
    """Return the names by which a rule can match this operation, from the narrowest to the widest.

    For example, the names for `file-read-data` are `file-read-data`, `file-read*`, `file*` and
    `default`.
    """
    stars = [name for name in known if name[-1] == "*" and operation.startswith(name[:-1])]
    narrow = sorted((name for name in stars if name != operation), key=len, reverse=True)
    return [operation, *narrow, "default"]


def taken_by(operation: str) -> set[str]:
    return next(
        (kinds for start, kinds in tables.TAKES.items() if operation.startswith(start)), set()
    )


def kinds_of(item: tuple) -> set[str]:
    if item[0] in COMBINATORS:
        return set().union(*map(kinds_of, item[1:]))
    inner = kinds_of(item[2]) if item[1:2] == ("unix-socket",) else set()
    return {tables.KINDS[item[0]]} | inner


def matches(item: tuple, act: Act) -> bool:
    kind, value = item[0], item[-1]
    if kind in COMBINATORS:
        return COMBINATORS[kind]([matches(part, act) for part in item[1:]])
    if kind == "regex":
        return bool(value.search(act.path))
    if kind == "vnode-type":
        return act.vnode == value
    if kind == "remote" and item[1] == "tcp":
        host, _, port = value.partition(":")
        assert host == "localhost"  # the only host name that Seatbelt accepts
        assert port.isdigit()
        return (act.socket, act.host, act.port) == ("tcp", host, int(port))
    if kind in {"local", "remote"}:
        return item[1] == "unix-socket" and act.socket == "unix" and matches(item[2], act)
    if kind == "socket-domain":
        return act.socket in {"AF_UNIX": {"unix"}, "AF_INET": {"ip", "tcp", "udp"}}[value]
    if kind == "target":
        return act.target == "self" or (act.target == value == "same-sandbox")
    known = {
        "literal": lambda: act.path == value,
        "subpath": lambda: act.path == value or act.path.startswith(value.rstrip("/") + "/"),
        "path-ancestors": lambda: value.startswith(act.path.rstrip("/") + "/") and act.path != "",
        "global-name": lambda: act.name == value,
        "sysctl-name": lambda: act.name == value,
        "sysctl-name-prefix": lambda: act.name.startswith(value),
    }
    assert isinstance(value, Text), item
    return known[kind]()
