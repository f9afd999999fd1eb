"""Signal numbers as this system has them. `signal` would pull in `enum` on the start path.

Windows has few of them; there the Linux numbers stand for what is meant.
"""

import _signal  # type: ignore[import-not-found]


def _number(name: str, otherwise: int) -> int:
    return int(getattr(_signal, name, otherwise))


SIGHUP = 1
SIGINT = 2
SIGQUIT = 3
SIGKILL = 9
SIGALRM = 14
SIGTERM = 15
SIGCHLD = _number("SIGCHLD", 17)
SIGCONT = _number("SIGCONT", 18)
SIGSTOP = _number("SIGSTOP", 19)
SIGXCPU = 24
SIGXFSZ = 25
SIGSYS = _number("SIGSYS", 31)

FORWARDED = (SIGHUP, SIGINT, SIGQUIT, SIGTERM)
"""What a client or a terminal sends to corral and means for the target."""
