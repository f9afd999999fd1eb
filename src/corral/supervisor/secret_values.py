"""Mask the values of a run's secrets in all text that its target can influence.

A secret is a value of `environment.secrets`, a sensitive value that the user gave for a server's
setting, or a user's variable or argument that looks like a secret. Nothing else is masked, so that
the report still shows what the target does.

A target may put a secret into a DNS name. DNS names ignore case, cannot contain every character,
and are split into labels. So values are compared without regard to case, and only the letters and
digits of longer values are compared. A secret that the target has encoded is not recognized, so
masking does not keep a target from passing on a secret.

The time needed to mask a string grows only linearly with its length. Otherwise a target could keep
corral busy, because the target decides how many denials there are.
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
"""Shorter values occur in many strings, so they are masked only as whole words."""
MIN_SPLIT_LENGTH = 8
"""Shorter values are masked only if they occur in one piece: `1234` is not found in `10.1.234.5`.
"""
MIN_GUESSED_LENGTH = 8
"""Shorter values are not masked if only the name of their variable looks like that of a secret,
because they are often plain words, such as `basic` or `none`.
"""
PART_LENGTH = 10
"""Parts of a value that have at least this length are masked too, because text may be cut in the
middle of a value.
"""
MAX_VALUE_LENGTH = 4096
PLACES = frozenset((
    "HOST", "HOSTNAME", "DOMAIN", "URL", "URI", "ENDPOINT", "SERVER", "PORT", "PATH", "FILE", "DIR",
    "DIRECTORY", "SOCK", "SOCKET", "TYPE", "MODE", "METHOD", "PROVIDER", "USER", "USERNAME", "NAME",
))  # fmt: skip
"""Endings of variable names. If a name ends in one of these words, its value is not masked as a
whole, even if the name looks like that of a secret. A password inside the value is still masked.
"""


class SecretValues:
    """The secrets of one run, made from (name, value) pairs. The name is that of the secret's
    variable, "" if the secret comes from an argument, or "a setting".
    """

    def __init__(self, secrets: Iterable[tuple[str, str]]) -> None:
        self._words: dict[str, str] = {}
        self._short: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._parts: dict[str, str] = {}
        for name, value in secrets:
            if value:
                self._add(name, value[:MAX_VALUE_LENGTH])

    def hide(self, text: str) -> tuple[str, str]:
        """Return the text with all secrets masked, and the name of one of the secrets in it. The
        name is "an argument" if no secret in the text has a name, and "" if it contains no secret.
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
        """Yield the name, the start and the end of each secret that occurs in a string."""
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
    """Return a function that masks a plan's secrets in a string. The function returns the masked
    string and the name of one masked secret, or "" if there was none.
    """
    program = plan.program
    environment = [one for one in plan.environment if one[0] not in plan.requested_names]
    # Search only the words that the user typed. If the user named a server, these words are in
    # `program.server`, because `program.typed` is then the command that the server's author chose.
    found = find_secrets(environment, plan.secret_names, program.server or program.typed)
    given = [("a setting", value) for value in plan.given_values]
    return SecretValues([*found, *given]).hide


def find_secrets(
    environment: Iterable[tuple[str, str]], declared: Sequence[str], typed: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield (variable, value) for each secret of a run. The variable is "" for an argument."""
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
    """Return a value, or only the path and query if it is a URL, because the host is not a secret.

    Return "" for a URL with a password, because the password is masked as a separate secret.
    """
    _, mark, rest = value.partition("://")
    if not mark:
        return value
    return "" if any(find_spans((value,))) else rest.replace("?", "/").partition("/")[2]


def _letters(text: str) -> tuple[str, list[int]]:
    """Return the letters and digits of a string in lower case, and their positions in it."""
    places = [at for at, letter in enumerate(text) if letter.isalnum()]
    return _fold("".join(text[at] for at in places)), places


def _fold(text: str) -> str:
    """Return a string in lower case, with its length unchanged, so that positions in the result are
    also positions in the string.
    """
    folded = text.lower()
    return folded if len(folded) == len(text) else "".join(one.lower()[0] for one in text)


def _split(value: str) -> list[str]:
    """Split a value into words of letters, digits, hyphens and underscores."""
    return "".join(one if one.isalnum() or one in "-_" else " " for one in value).split()


def _find_places(text: str, value: str) -> Iterator[int]:
    """Yield each position at which a value occurs in a string, without overlaps."""
    at = text.find(value)
    while at >= 0:
        yield at
        at = text.find(value, at + len(value))


def _is_word(text: str, start: int, end: int) -> bool:
    around = text[max(start - 1, 0) : start] + text[end : end + 1]
    return not any(letter.isalnum() for letter in around)
