"""Check names, requests and definitions against the rules of one conversation."""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from urllib.parse import unquote

from corral.messages.definitions import Pin, canonical, describe_changes, group_pins
from corral.record import record
from corral.safe_text import shell_word, shown

RULES = {"tool": "tools", "prompt": "prompts", "resource": "resources", "template": "resources"}
"""The policy table that contains the `allow` and `deny` patterns for each kind."""

Patterns = Sequence[str] | None
CONTROLS = re.compile("[\\x00-\\x1f]")
QUERY = re.compile("[?#]")


@record
class Refusal:
    """Something that the guard refused. `kind` is for example "tool" or "request", and `what` is
    usually its name. `rule` is the rule that forbids it. `allow` is the flag of `corral run` that
    would allow it, or "" if there is none.
    """

    kind: str
    what: str
    rule: str
    allow: str = ""

    def text(self) -> str:
        return f"corral: {self.kind} {shown(self.what, 200)} is refused by {self.rule}"


class Rules:
    """Checks the messages of one conversation. `allow` and `deny` contain patterns for each table
    (tools, prompts, resources). If `allow` is None for a table, everything in the table is allowed.
    """

    def __init__(
        self,
        *,
        allow: Mapping[str, Patterns],
        deny: Mapping[str, Patterns],
        requests: Sequence[str] = (),
        pins: Iterable[Pin] | None = None,
        refuse_changes: bool = True,
    ) -> None:
        self._allow, self._deny = allow, deny
        self._requests = tuple(requests)
        self._pins = None if pins is None else group_pins(pins)
        self._changed: set[tuple[str, str]] = set()
        self.refuse_changes = refuse_changes

    @property
    def has_pins(self) -> bool:
        return self._pins is not None

    def has_rule(self, kind: str) -> bool:
        table = RULES[kind]
        stated = self._allow.get(table) is not None or bool(self._deny.get(table))
        return stated or (self._pins is not None and kind != "resource")

    def check(self, kind: str, name: str) -> Refusal | None:
        """Return a refusal if the patterns or the pins forbid a call."""
        refusal = self.check_name(kind, name)
        if refusal or self._pins is None or not self.refuse_changes or kind == "resource":
            return refusal
        if (kind, name) in self._pins and (kind, name) not in self._changed:
            return None
        why = "changed since it was pinned" if (kind, name) in self._pins else "not pinned"
        return Refusal(kind=kind, what=name, rule=f"mcp.pins: {why}")

    def check_name(self, kind: str, name: str) -> Refusal | None:
        """Check a name against the policy's patterns. A URI is checked in all its spellings."""
        table = RULES[kind]
        spellings = _spellings(name) if table == "resources" else (name,)
        shorter = [short for one in spellings[1:] for short in _shorter_spellings(one)]
        for pattern in self._deny.get(table) or ():
            if any(fnmatchcase(one, pattern) for one in (*spellings, *shorter)):
                rule = f"mcp.{table}.deny {shown(pattern)}"
                return Refusal(kind=kind, what=name, rule=rule)
        allowed = self._allow.get(table)
        if allowed is None or all(_matches(one, allowed) for one in spellings):
            return None
        # Escape wildcards, because a server may name a tool `*`, and the flag must allow only this
        # tool.
        literal = "".join(f"[{one}]" if one in "*?[" else one for one in name)
        flag = f"--tools {shell_word(literal)}" if kind == "tool" else ""
        return Refusal(kind=kind, what=name, rule=f"mcp.{table}.allow", allow=flag)

    def may_request(self, method: str) -> bool:
        """Return whether a server may make a request. The rule `sampling` allows every method that
        begins with `sampling/`.
        """
        family = method.partition("/")[0]
        return any(pattern == family or fnmatchcase(method, pattern) for pattern in self._requests)

    def compare(self, kind: str, name: str, definition: object) -> list[str]:
        """Return the differences between a definition and the pinned one. Remember whether there
        were any, because `check` refuses calls of a changed definition. Return [] if the rules have
        no pins, and for resources, which are not pinned.
        """
        if self._pins is None or kind == "resource":
            return []
        pinned, text = self._pins.get((kind, name), ()), canonical(definition)
        if not pinned:
            return ["it is new"]
        if text in pinned:
            self._changed.discard((kind, name))
            return []
        self._changed.add((kind, name))
        return describe_changes(pinned[0], text)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _spellings(uri: str) -> tuple[str, ...]:
    """Return a URI and its other spellings, which a server may treat as the same URI. In the other
    spellings, percent escapes are decoded, control characters are removed, and the parts `.` and
    `..` are resolved.

    `.` and `..` are resolved in several ways, because programs differ. Some treat the empty part in
    `a//b` as a directory, although file systems do not. Some also resolve `.` and `..` after a `?`
    or `#`.
    """
    path = QUERY.split(uri, maxsplit=1)[0]
    pairs = dict.fromkeys(((_plain(uri), ""), (_plain(path), _plain(uri[len(path) :]))))
    return uri, *(
        _without_dots(head, is_part=is_part) + query
        for head, query in pairs
        for is_part in (True, False)
    )


def _plain(uri: str) -> str:
    return CONTROLS.sub("", unquote(uri)).strip(" ").replace("\\", "/")


def _without_dots(uri: str, *, is_part: bool) -> str:
    """Resolve `.` and `..` in the path of a URI. If `is_part` is true, the empty part between two
    slashes counts as a directory.
    """
    scheme, colon, rest = uri.partition(":")
    parts: list[str] = []
    fixed = 3 if rest.startswith("//") else 0  # the host is not part of the path
    for part in rest.split("/"):
        if part == "..":
            while not is_part and len(parts) > fixed + 1 and not parts[-1]:
                parts.pop()
            if len(parts) > fixed:
                parts.pop()
        elif part != ".":
            parts.append(part)
    return scheme.lower() + colon + "/".join(parts)


def _shorter_spellings(uri: str) -> tuple[str, str]:
    """Return two shorter spellings of a URI. The first has no repeated slashes and, if it is a
    `file:` URI, no host. The second also has no query.

    Both may name the same resource as the URI, so `deny` patterns are compared with them too.
    """
    plain = re.sub("(?<=[^:/])/+", "/", uri)
    short = re.sub(r"^file:(?://(?i:localhost)(?=/))?/*", "file:///", plain)
    return short, QUERY.split(short, maxsplit=1)[0]
