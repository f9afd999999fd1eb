"""Does a variable's name say that its value is a secret? In doubt it is treated as one."""

from __future__ import annotations

TELLING = (
    "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "COOKIE", "SESSION",
    "PRIVATE", "AUTH", "BEARER", "DSN", "CONNECTION_STRING", "DATABASE_URL",
)  # fmt: skip
WORDS = frozenset(("KEY", "KEYS", "APIKEY", "PAT", "PASS", "PWD", "PIN", "JWT", "HEADERS"))


def is_secret_name(name: str) -> bool:
    upper = name.upper()
    return any(part in upper for part in TELLING) or bool(WORDS & set(upper.split("_")))
