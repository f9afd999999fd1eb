"""Parse options with a table of flags. Each command has a table, which also serves for help and
completion.

`argparse` is not used, because importing it takes as long as starting a bare interpreter.
"""

from __future__ import annotations

from corral.errors import EXIT_USAGE, SandboxError
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@record
class Flag:
    """A flag of a command.

    `value` is the placeholder for the flag's value in the help, or "" if the flag takes no value.
    `key` is the policy key that the flag sets, if any.
    """

    name: str
    help: str
    value: str = ""
    many: bool = False  # whether the flag may be given several times
    short: str = ""
    key: str = ""


# Other programs' names for corral's flags.
SYNONYMS = {
    "--net": "--allow-net", "--network": "--allow-net", "--allow": "--allow-net",
    "--allow-read": "--read", "--ro": "--read", "-r": "--read",
    "--allow-write": "--write", "--rw": "--write", "-w": "--write",
    "--allow-env": "--env", "-e": "--env", "--memory": "--max-memory", "-m": "--max-memory",
    "--cpus": "--max-cpu", "--pids-limit": "--max-pids", "--allow-run": "--allow-subprocess",
    "--publish": "--listen", "-p": "--listen", "-n": "--dry-run", "-f": "--force", "-y": "--yes",
}  # fmt: skip
MIN_LIKENESS = 0.65
RUN_HELP = "`corral run --help`"
"""The parser does not know which command it parses, so its hints contain this command. `corral.cli`
replaces the command's name.
"""


class UsageError(SandboxError):
    exit_code = EXIT_USAGE


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


def parse(
    flags: Sequence[Flag],
    arguments: Sequence[str],
    *,
    anywhere: bool = False,
    keep_unknown: bool = False,
) -> tuple[Options, list[str]]:
    """Split arguments into options and other words.

    Options may come after other words only if `anywhere` is true. After `--`, no word is an option.
    With `keep_unknown`, an unknown option after the first word is also a word.
    """
    known = {flag.name: flag for flag in flags}
    known.update({flag.short: flag for flag in flags if flag.short})
    options, words, rest = Options(), list[str](), list(arguments)
    while rest and (anywhere or not words):
        word = rest.pop(0)
        if word == "--":
            break
        if not word:
            # A shell turns "$UNSET" into an empty word.
            raise UsageError("an argument is empty", hint="is a shell variable empty?")
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        name, equals, value = word.partition("=")
        flag = known.get(name)
        if flag is None and keep_unknown and words:
            words.append(word)
            continue
        if flag is None:
            raise UsageError(f"unknown option {name}", hint=_nearest(name, known))
        if flag.value and not equals:
            # In `--flag value`, the value must not be a known option. In `--flag=value`, any value
            # is accepted.
            if not rest or rest[0] == "--" or rest[0] in known:
                raise UsageError(f"{name} needs a value: {flag.value}", hint=flag.help)
            value = rest.pop(0)
        elif equals and not flag.value:
            raise UsageError(f"{name} takes no value", hint=f"write {name} alone")
        if flag.value and not value:
            raise UsageError(f"{name} needs a value: {flag.value}", hint=flag.help)
        if flag.name in options.values and flag.value and not flag.many:
            raise UsageError(f"{flag.name} is given twice", hint="leave one of them out")
        options.values.setdefault(flag.name, []).append(value)
    return options, [*words, *rest]


def help_lines(flags: Sequence[Flag]) -> list[str]:
    left = [
        (f"{flag.short}, " if flag.short else "") + f"{flag.name} {flag.value}".rstrip()
        for flag in flags
    ]
    width = max((len(item) for item in left), default=0)
    return [f"  {item:<{width}}  {flag.help}" for item, flag in zip(left, flags, strict=True)]


def _nearest(name: str, known: dict[str, Flag]) -> str:
    near = SYNONYMS.get(name, "")
    if "--policy" in known and near not in known and (key := _find_key_without_flag(name)):
        return f"{key} has no option: set it in a policy (--policy FILE)"
    if near in known:
        return f"did you mean {near}?"
    return suggest(name, known, f"{RUN_HELP} lists the options")


def _find_key_without_flag(name: str) -> str:
    """Return the policy key that an unknown option (`--NAME` or `--max-NAME`) probably means, or ""
    if none matches. Search only keys that have no flag.
    """
    from corral.policy.schema import KEYS

    wanted = {f"limits.{name.removeprefix('--max-')}", name.removeprefix("--").replace("-", "_")}
    found = [key.path for key in KEYS if not key.flag and "." in key.path]
    return next((path for path in found if wanted & {path, path.rpartition(".")[2]}), "")


def find_nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that a user most likely meant, or "" if none is similar."""
    import difflib

    bare = {other.strip("-").lower(): other for other in known}
    near = difflib.get_close_matches(word.strip("-").lower(), bare, 1, MIN_LIKENESS)
    return bare[near[0]] if near else ""


def suggest(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint with the known word that the user most likely meant, or `otherwise` if no known
    word is similar.
    """
    near = find_nearest(word, known)
    return f"did you mean {near}?" if near else otherwise
