"""The user's terminal: a target may change it and be killed, so it is given back as it was."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable


def keep(fd: int) -> Callable[[], None]:
    """Remember the terminal on `fd`; the answer puts it back, wherever `fd` leads by then."""
    import termios

    state, terminal = termios.tcgetattr(fd), os.dup(fd)

    def restore() -> None:
        try:
            # From the background this would stop us, and the terminal is somebody else's by then.
            if os.tcgetpgrp(terminal) == os.getpgrp():
                termios.tcsetattr(terminal, termios.TCSANOW, state)
        except (OSError, termios.error):
            pass  # it was closed, or never was ours to control
        os.close(terminal)

    return restore
