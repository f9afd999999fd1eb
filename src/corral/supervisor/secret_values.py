"""Mask the values of a run's secrets in every text that its target can influence.

A secret is a value of `environment.secrets`, or a variable or argument of the user that looks like
a secret. Nothing else is masked, because masks hide what the target does.

A target may put a secret into a DNS name. DNS names ignore case, cannot contain every character,
and are split into labels. So values are compared without regard to case, and only the letters and
digits of longer values are compared. A secret that the target encodes is not recognized. Masking
does not confine the target.

The time to mask a text is linear in its length. Otherwise a target could keep corral busy, because
it decides how many denials there are.
"""

from __future__ import annotations

from corral.policy.variables import find_spans, is_secret_name
from corral.safe_text import mask_spans

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from corral.denials.records import Hide
    from corral.plan.model import Plan

MIN_LENGTH = 4
"""A shorter value occurs in many texts, so it is masked only where it is a whole word."""
MIN_SPLIT_LENGTH = 8
"""A shorter value is masked only where it is in one piece: `1234` is not in `10.1.234.5`."""
MIN_GUESSED_LENGTH = 8
"""Shorter values of variables that are only named like a secret, such as `basic` or `none`, are not
masked.
"""
PART_LENGTH = 10
"""A part of a value is masked too if it is at least this long, because a text may be cut in the
middle of a value.
"""
MAX_VALUE_LENGTH = 4096
PLACES = frozenset((
    "HOST", "HOSTNAME", "DOMAIN", "URL", "URI", "ENDPOINT", "SERVER", "PORT", "PATH", "FILE", "DIR",
    "DIRECTORY", "SOCK", "SOCKET", "TYPE", "MODE", "METHOD", "PROVIDER", "USER", "USERNAME", "NAME",
))  # fmt: skip
"""If the name of a variable ends in one of these words, its value is not masked as a whole, even if
the name looks like that of a secret. A password in the value is still masked.
"""


class SecretValues:
    """The secrets of one run, each with the name of its variable; "" if it is an argument."""

    def __init__(self, secrets: Iterable[tuple[str, str]]) -> None:
        self._words: dict[str, str] = {}
        self._short: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._parts: dict[str, str] = {}
        for name, value in secrets:
            if value:
                self._add(name, value[:MAX_VALUE_LENGTH])

    def hide(self, text: str) -> tuple[str, str]:
        """Return the text with every secret masked, and the name of one of them, or "" if there is
        none.
        """
        found = list(self._find(text))
        if not found:
            return text, ""
        name = next((name for name, _, _ in found if name), "an argument")
        return mask_spans(text, ((start, end) for _, start, end in found)), name

    def _add(self, name: str, value: str) -> None:
        plain, _ = _letters(value)
        if len(plain) < MIN_SPLIT_LENGTH:
            whole = self._words if len(plain) < MIN_LENGTH else self._short
            whole[_fold(value)] = name
            return
        self._values[plain] = name
        for word in _split(_without_host(value)):
            letters, _ = _letters(word)
            for at in range(len(letters) - PART_LENGTH + 1):
                self._parts[letters[at : at + PART_LENGTH]] = name

    def _find(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Yield the name, the start and the end of each secret in a text."""
        folded = _fold(text)
        for value, name in (*self._words.items(), *self._short.items()):
            for at in _find_places(folded, value):
                end = at + len(value)
                if value in self._short or _is_word(folded, at, end):
                    yield name, at, end
        plain, places = _letters(text)
        for value, name in self._values.items():
            for at in _find_places(plain, value):
                yield name, places[at], places[at + len(value) - 1] + 1
        if not self._parts:
            return
        for at in range(len(plain) - PART_LENGTH + 1):
            part = plain[at : at + PART_LENGTH]
            if part in self._parts:
                yield self._parts[part], places[at], places[at + PART_LENGTH - 1] + 1


def hide_values(plan: Plan) -> Hide:
    """Return a function that masks a plan's secrets in a text. The function also returns the name
    of the secret that it found, or "".
    """
    program = plan.program
    environment = [one for one in plan.environment if one[0] not in plan.requested_names]
    # If the user named a server, `typed` is the command that the server's author chose, and
    # `server` are the user's own words.
    found = find_secrets(environment, plan.secret_names, program.server or program.typed)
    given = [("a setting", value) for value in plan.given_values]
    return SecretValues([*found, *given]).hide


def find_secrets(
    environment: Iterable[tuple[str, str]], declared: Sequence[str], typed: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield (variable, value) for each secret of a run."""
    for name, value in environment:
        if value and (name in declared or _is_guessed(name, value)):
            yield name, value
        yield from ((name, part) for part in _find_parts((value,)))
    yield from (("", part) for part in _find_parts(typed))


def _is_guessed(name: str, value: str) -> bool:
    place = name.upper().rpartition("_")[2] in PLACES or value.startswith(("/", "~/", "./"))
    return is_secret_name(name) and not place and len(value) >= MIN_GUESSED_LENGTH


def _find_parts(words: Sequence[str]) -> Iterator[str]:
    words = [word[:MAX_VALUE_LENGTH] for word in words]
    for word, spans in zip(words, find_spans(words), strict=True):
        yield from (word[start:end] for start, end in spans)


def _without_host(value: str) -> str:
    """Return the part of a secret value that is masked even where only a piece of it occurs: the
    path and query of a URL, or the whole value if it is not a URL. Return "" for a URL with a
    password, because the password itself is one of the secrets.
    """
    _, mark, rest = value.partition("://")
    if not mark:
        return value
    return "" if any(find_spans((value,))) else rest.replace("?", "/").partition("/")[2]


def _letters(text: str) -> tuple[str, list[int]]:
    """Return a text's letters and digits in lower case, and the position of each of them."""
    places = [at for at, letter in enumerate(text) if letter.isalnum()]
    return _fold("".join(text[at] for at in places)), places


def _fold(text: str) -> str:
    """Return a text in lower case, without a change of its length."""
    folded = text.lower()
    return folded if len(folded) == len(text) else "".join(one.lower()[0] for one in text)


def _split(value: str) -> list[str]:
    """Split a value into words of letters, digits, hyphens and underscores."""
    return "".join(one if one.isalnum() or one in "-_" else " " for one in value).split()


def _find_places(text: str, value: str) -> Iterator[int]:
    """Yield each position of a value in a text, without overlaps."""
    at = text.find(value)
    while at >= 0:
        yield at
        at = text.find(value, at + len(value))


def _is_word(text: str, start: int, end: int) -> bool:
    around = text[max(start - 1, 0) : start] + text[end : end + 1]
    return not any(letter.isalnum() for letter in around)
