"""Mask the values of a run's secrets in every text that its target can influence.

A secret is a value of `environment.secrets`, or a variable or argument that looks like one. DNS
names ignore case and cannot contain every character. So values are compared without regard to case,
and only their letters and digits count. This also finds a value that was split over labels. A
secret that the target encodes is not recognized, and masking does not confine the target.
"""

from __future__ import annotations

from corral.policy.variables import is_secret_name, masked
from corral.safe_text import MASK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from corral.denials.records import Hide
    from corral.plan.model import Plan

MIN_LENGTH = 4
"""A shorter value occurs in many texts, so it is masked only where it is a whole word."""
MIN_GUESSED_LENGTH = 8
"""Shorter values of variables that are only named like a secret, such as `basic` or `none`, are not
masked.
"""
PART_LENGTH = 10
"""A part of a value is masked from this length on, because a text may end within a value."""
MAX_VALUE_LENGTH = 4096
PLACES = frozenset((
    "HOST", "HOSTNAME", "DOMAIN", "URL", "URI", "ENDPOINT", "SERVER", "PORT", "PATH", "FILE", "DIR",
    "DIRECTORY", "SOCK", "SOCKET", "TYPE", "MODE", "METHOD", "PROVIDER", "USER", "USERNAME", "NAME",
))  # fmt: skip
"""Last words in the names of variables whose value is not a secret as a whole. A password in it is
still masked.
"""


class SecretValues:
    """The secrets of one run, each with the name of its variable; "" if it is an argument."""

    def __init__(self, secrets: Iterable[tuple[str, str]]) -> None:
        self._words: list[tuple[str, str]] = []
        self._values: dict[str, str] = {}
        self._parts: dict[str, str] = {}
        for name, value in secrets:
            self._add(name, value[:MAX_VALUE_LENGTH])

    def hide(self, text: str) -> tuple[str, str]:
        """Return the text with every secret masked, and the name of the first one; "" if none."""
        covered: dict[int, str] = {}
        for name, start, end in self._find(text):
            covered.update(dict.fromkeys(range(start, end), name))
        if not covered:
            return text, ""
        found = [
            MASK if at in covered and at - 1 not in covered else "" if at in covered else letter
            for at, letter in enumerate(text)
        ]
        name = next((one for one in covered.values() if one), "")
        return "".join(found), name or "an argument"

    def _add(self, name: str, value: str) -> None:
        plain, _ = _letters(value)
        if len(plain) < MIN_LENGTH:
            self._words.append((name, value))
            return
        self._values[plain] = name
        if "://" in value:
            return  # a part of it may be the host, which is not secret
        for word in _split(value):
            letters, _ = _letters(word)
            for at in range(len(letters) - PART_LENGTH + 1):
                self._parts[letters[at : at + PART_LENGTH]] = name

    def _find(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Yield the name, the start and the end of each secret in a text."""
        for name, value in self._words:
            yield from ((name, at, at + len(value)) for at in _find_words(text, value))
        plain, places = _letters(text)
        for value, name in self._values.items():
            at = plain.find(value)
            while at >= 0:
                yield name, places[at], places[at + len(value) - 1] + 1
                at = plain.find(value, at + 1)
        if not self._parts:
            return
        for at in range(len(plain) - PART_LENGTH + 1):
            part = plain[at : at + PART_LENGTH]
            if part in self._parts:
                yield self._parts[part], places[at], places[at + PART_LENGTH - 1] + 1


def hide_values(plan: Plan) -> Hide:
    """Return a function that masks a plan's secrets, and what looks like a secret, in a text.

    The function also returns the name of the secret that it found, or "".
    """
    found = find_secrets(plan.environment, plan.secret_names, plan.program.typed)
    values = SecretValues(found)

    def hide(text: str) -> tuple[str, str]:
        hidden, name = values.hide(text)
        host, _, port = hidden.partition(":")
        if port.isdecimal() and "=" not in host:
            return hidden, name  # for example `auth:8080`, which is not a password
        plain = masked((hidden,))[0]
        return plain, name or ("a secret" if plain != hidden else "")

    return hide


def find_secrets(
    environment: Iterable[tuple[str, str]], declared: Sequence[str], typed: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield (variable, value) for each secret of a run."""
    for name, value in environment:
        if value and (name in declared or _is_guessed(name, value)):
            yield name, value
        yield from ((name, part) for part in _find_parts(value, masked((value,))[0]))
    for word, hidden in zip(typed, masked(typed), strict=True):
        yield from (("", part) for part in _find_parts(word, hidden))


def _is_guessed(name: str, value: str) -> bool:
    place = name.upper().rpartition("_")[2] in PLACES or value.startswith(("/", "~/", "./"))
    return is_secret_name(name) and not place and len(value) >= MIN_GUESSED_LENGTH


def _find_parts(text: str, hidden: str) -> Iterator[str]:
    """Yield the parts of `text` that MASK replaces in `hidden`."""
    if text == hidden:
        return
    first, *others = hidden.split(MASK)
    at = len(first)
    for number, rest in enumerate(others):
        last = number == len(others) - 1
        end = len(text.rstrip()) - len(rest) if last else text.find(rest, at)
        if part := text[at:end]:
            yield part
        at = end + len(rest)


def _letters(text: str) -> tuple[str, list[int]]:
    """Return a text's letters and digits in lower case, and the place of each of them."""
    found = [(letter.lower()[0], at) for at, letter in enumerate(text) if letter.isalnum()]
    return "".join(letter for letter, _ in found), [at for _, at in found]


def _split(value: str) -> list[str]:
    """Return the parts of a value between dots and other marks, but not between hyphens."""
    return "".join(one if one.isalnum() or one in "-_" else " " for one in value).split()


def _find_words(text: str, value: str) -> Iterator[int]:
    """Yield the places where a value is a word of its own."""
    folded, wanted = text.lower(), value.lower()
    at = folded.find(wanted) if len(folded) == len(text) else -1
    while at >= 0:
        around = folded[at - 1 : at] + folded[at + len(wanted) : at + len(wanted) + 1]
        if not any(letter.isalnum() for letter in around):
            yield at
        at = folded.find(wanted, at + 1)
