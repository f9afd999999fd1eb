"""Variables that every target has on a POSIX system."""

from __future__ import annotations


def environment(home: str, temporary: str, *, state: str) -> tuple[tuple[str, str], ...]:
    values = {
        "HOME": home,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/sh",
        "TMPDIR": temporary,
        "LANG": "C.UTF-8",
    }
    if state:
        values["STATE_DIRECTORY"] = state
    return tuple(values.items())
