"""List this system's signal numbers without importing `signal`, which would import `enum` too.

Windows defines only a few of these signals, and the others get their Linux numbers there.
"""

import _signal  # type: ignore[import-not-found]


def _number(name: str, otherwise: int) -> int:
    return int(getattr(_signal, name, otherwise))


SIGHUP = 1
SIGINT = 2
SIGQUIT = 3
SIGKILL = 9
SIGPIPE = 13
SIGTERM = 15
SIGCHLD = _number("SIGCHLD", 17)
SIGCONT = _number("SIGCONT", 18)
SIGSTOP = _number("SIGSTOP", 19)
SIGXCPU = 24

FORWARDED = (SIGHUP, SIGINT, SIGQUIT, SIGTERM)
"""Signals that corral forwards to the target, because the client or terminal that sends them to
corral means the target.
"""
