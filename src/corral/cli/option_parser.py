"""Flags as data: one table a command for parsing, help and completion.

`argparse` alone takes as long to import as a bare interpreter takes to start.
"""

from __future__ import annotations

from corral.errors import SandboxError
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


@record
class Flag:
    """Without `value` it is a switch; with `many` it may be given several times.

    `key` is what it sets in the policy of a run.
    """

    name: str
    help: str
    value: str = ""
    many: bool = False
    short: str = ""
    key: str = ""


class UsageError(SandboxError):
    exit_code = 2


class Options:
    def __init__(self) -> None:
        self.values: dict[str, list[str]] = {}

    def has(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str) -> str | None:
        found = self.values.get(name)
        return found[-1] if found else None

    def all(self, name: str) -> tuple[str, ...]:
        return tuple(self.values.get(name, ()))


def parse(flags: Sequence[Flag], arguments: Sequence[str]) -> tuple[Options, list[str]]:
    """Return the options before the first other word, and the rest; `--` ends the options."""
    known = {flag.name: flag for flag in flags}
    known.update({flag.short: flag for flag in flags if flag.short})
    options, rest = Options(), list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        flag = known.get(name)
        if flag is None:
            raise UsageError(f"unknown option {name}", hint=_nearest(name, known))
        if flag.value and not equals:
            if not rest:
                raise UsageError(f"{name} needs a value: {flag.value}", hint=flag.help)
            value = rest.pop(0)
        elif equals and not flag.value:
            raise UsageError(f"{name} takes no value", hint=f"write {name} alone")
        if flag.name in options.values and flag.value and not flag.many:
            raise UsageError(f"{flag.name} is given twice", hint="leave one of them out")
        options.values.setdefault(flag.name, []).append(value)
    return options, rest


def help_lines(flags: Sequence[Flag]) -> list[str]:
    left = [
        (f"{flag.short}, " if flag.short else "") + f"{flag.name} {flag.value}".rstrip()
        for flag in flags
    ]
    width = max((len(item) for item in left), default=0)
    return [f"  {item:<{width}}  {flag.help}" for item, flag in zip(left, flags, strict=True)]


def _nearest(name: str, known: dict[str, Flag]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else "`--help` lists the options"
