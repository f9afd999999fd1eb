"""List the environment variables that every target has on a POSIX system."""

from __future__ import annotations


def environment(
    home: str, temporary: str, *, state: str, language: str = "C.UTF-8"
) -> tuple[tuple[str, str], ...]:
    values = {
        "HOME": home,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/sh",
        "TMPDIR": temporary,
        "LANG": language,
    }
    if state:
        values["STATE_DIRECTORY"] = state
    return tuple(values.items())
