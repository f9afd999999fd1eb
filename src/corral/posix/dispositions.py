"""What a process does with signals: given back as a program expects to find it.

Python ignores SIGPIPE and SIGXFSZ, and ignored signals stay ignored through exec. `signal` itself
would import `enum` on the start path.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import sys

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable


def block(numbers: Iterable[int]) -> None:
    _signal.pthread_sigmask(_signal.SIG_BLOCK, numbers)


def unblock(numbers: Iterable[int]) -> None:
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, numbers)


def reset() -> None:
    """Every signal at its default and none blocked: no handler of ours runs from here on."""
    _signal.set_wakeup_fd(-1)
    for number in _signal.valid_signals():
        try:
            _signal.signal(number, _signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # SIGKILL, SIGSTOP and what the C library keeps for itself
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
