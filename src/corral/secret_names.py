"""Does a variable's name say that its value is a secret? In doubt it is treated as one.

And which of a command's words hold one, for whatever shows them: a heuristic, since nothing marks
an argument as secret. Lists of processes show them all the same.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MASK = "***"
TELLING = (
    "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "COOKIE", "SESSION",
    "PRIVATE", "AUTH", "BEARER", "DSN", "CONNECTION_STRING", "DATABASE_URL", "APIKEY", "ACCESSKEY",
)  # fmt: skip
WORDS = frozenset(("KEY", "KEYS", "PAT", "PASS", "PWD", "PIN", "JWT", "HEADERS"))
# How keys of widely used services begin.
BEGINNINGS = (
    "sk-", "sk_", "rk_", "ghp_", "gho_", "ghs_", "ghu_", "github_pat_", "glpat-", "xoxb-", "xoxp-",
    "xapp-", "AKIA", "ASIA", "AIza", "eyJ", "hf_", "npm_", "pypi-", "ntn_", "figd_", "tvly-",
    "lin_api_", "dop_v1_", "SG.",
)  # fmt: skip
SHORTEST = 16
BETWEEN = "?&;, \t\n"
VARIABLE = "${"


def is_secret_name(name: str) -> bool:
    upper = name.upper().replace("-", "_")
    return any(part in upper for part in TELLING) or bool(WORDS & set(upper.split("_")))


def masked(words: Sequence[str]) -> tuple[str, ...]:
    """A command's words without what looks like a secret."""
    return tuple(_masked(word, before) for word, before in zip(words, ("", *words), strict=False))


def _masked(word: str, before: str) -> str:
    if value := _value(word, before):
        return word.rstrip()[: -len(value)] + MASK
    if word.startswith(BEGINNINGS) and len(word) >= SHORTEST:
        return MASK
    for old, new in _inside(word):
        word = word.replace(old, new)
    return word


def _value(word: str, before: str) -> str:
    """All that an option or a header has for a value, or that stands behind such an option."""
    named = before.startswith("-") and "=" not in before and is_secret_name(before)
    found = word if named and not word.startswith("-") else ""
    for mark in "=:":
        name, between, value = word.partition(mark)
        if between and not value.startswith("//") and _is_name(name.lstrip("-")):
            found = found or value.strip()
    return "" if found.startswith(VARIABLE) else found


def _is_name(text: str) -> bool:
    return text.replace("-", "_").isidentifier() and is_secret_name(text)


def _inside(word: str) -> Iterator[tuple[str, str]]:
    """A password in an address, values in a query or a connection string."""
    _, mark, rest = word.partition("://")
    user, at, _ = rest.replace("?", "/").partition("/")[0].rpartition("@")
    name, colon, password = user.partition(":")
    if mark and at and password:
        yield f":{password}@", f":{MASK}@"
    elif mark and at and not colon:
        yield f"//{name}@", f"//{MASK}@"
    pairs = word
    for letter in BETWEEN:
        pairs = pairs.replace(letter, "&")
    for pair in pairs.split("&"):
        name, equals, value = pair.partition("=")
        if equals and value and _is_name(name) and not value.startswith(VARIABLE):
            yield pair, f"{name}={MASK}"
