"""What a Seatbelt profile decides: a small reading of SBPL, as far as corral's profiles use it.

Rules are tried in order and the last one that matches decides. An operation with a star stands for every operation
that begins so. A rule without filters is about everything. Anything that this does not know is an error, so that a
rule cannot be passed over.

Whether a rule for one operation counts before all rules for a class, in whatever order they stand, is told in both
ways: a profile whose verdict depends on that is an error too. `deny default` leaves some operations open.
"""

from __future__ import annotations

import dataclasses
import re

TOKEN = re.compile(r'\s*(?:(\()|(\))|"([^"\\]*)"|([^\s()"\\]+))')


STRAGGLERS = ("process-info", "nvram", "iokit-get-properties", "file-map-executable", "mach-task-")
"""What `deny default` is not about, as Firefox's profiles say, and what may be one of these."""


class Text(str):
    """A string in the profile, as opposed to a name."""


def parse(text: str) -> list:
    """The expressions in the text; a quote or a bracket that does not fit is an error."""
    stack: list[list] = [[]]
    at = 0
    text = text.rstrip()
    while at < len(text):
        found = TOKEN.match(text, at)
        if not found:
            raise ValueError(f"no SBPL: {text[at : at + 40]!r}")
        at = found.end()
        opened, closed, quoted, name = found.groups()
        if opened:
            stack.append([])
        elif closed:
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(Text(quoted) if name is None else name)
    if len(stack) != 1:
        raise ValueError("no SBPL: a bracket is left open")
    return stack[0]


@dataclasses.dataclass(frozen=True)
class Act:
    """What somebody tries. `socket` is "unix", with a path, or "ip", "tcp" or "udp", with `host` and `port`, where
    "localhost" is any address of the Mac itself; `target` is self, same-sandbox or others.
    """

    operation: str
    path: str = ""
    name: str = ""
    target: str = "others"
    socket: str = ""
    host: str = ""
    port: int = 0


class Profile:
    def __init__(self, text: str, parameters: tuple[tuple[str, str], ...]) -> None:
        version, *rules = parse(text)
        assert version == ["version", "1"]
        self.parameters = dict(parameters)
        assert len(self.parameters) == len(parameters), "a parameter is named twice"
        self.used: set[str] = set()
        self.rules = [self.rule(item) for item in rules]
        assert self.rules[0] == ("deny", ("default",), ())
        assert self.used == set(self.parameters), "a parameter that no rule uses"

    def rule(self, item: list) -> tuple:
        if item[0] == "if":
            _, condition, item = item
            assert condition == ["defined?", f"'{item[1]}"]
        action, *rest = item
        assert action in {"allow", "deny"}
        operations = tuple(word for word in rest if isinstance(word, str))
        filters = tuple(self.resolve(word) for word in rest if isinstance(word, list))
        return action, operations, filters

    def resolve(self, item: list) -> tuple:
        """A filter with its parameters filled in, as values and never as text to be read again."""
        if item[0] == "param":
            self.used.add(item[1])
            return Text(self.parameters[item[1]])
        return tuple(self.resolve(part) if isinstance(part, list) else part for part in item)

    def allows(self, act: Act) -> bool:
        found = [
            (breadth, action)
            for action, operations, filters in self.rules
            if (breadth := narrowest(operations, act.operation)) is not None
            and (not filters or any(matches(item, act) for item in filters))
        ]
        if not found:
            return True
        last = found[-1][1]
        first = min(breadth for breadth, _ in found)
        assert last == [action for breadth, action in found if breadth == first][-1], act
        return last == "allow"


def narrowest(operations: tuple[str, ...], operation: str) -> int | None:
    """Of those that cover it: 0 is its own name, 1 its class, 2 everything; None if none does."""
    found = [
        2 if pattern == "default" else 1 if pattern.endswith("*") else 0
        for pattern in operations
        if pattern == operation
        or (pattern == "default" and not operation.startswith(STRAGGLERS))
        or (pattern.endswith("*") and operation.startswith(pattern[:-1]))
    ]
    return min(found, default=None)


def matches(item: tuple, act: Act) -> bool:
    kind, value = item[0], item[-1]
    if kind == "remote" and item[1] == "tcp":
        host, _, port = value.partition(":")
        assert host == "localhost"  # the only name that Seatbelt knows
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
