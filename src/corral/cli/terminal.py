"""Restore the user's terminal settings, because a target may change them and be killed before it
restores them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers


def save_terminal(fd: int) -> Callable[[], None]:
    """Save the settings of the terminal on `fd`. Return a function that restores them."""
    import termios

    state, terminal = termios.tcgetattr(fd), os.dup(fd)

    def restore() -> None:
        try:
            # Restore the settings only if corral is in the foreground. The kernel would suspend a
            # background process that calls `tcsetattr`.
            if os.tcgetpgrp(terminal) == os.getpgrp():
                termios.tcsetattr(terminal, termios.TCSANOW, state)
        except (OSError, termios.error):
            pass  # the terminal was closed, or belongs to another session by now
        os.close(terminal)

    return restore
