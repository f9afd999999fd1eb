"""Signals as bytes in a pipe, for systems that have no descriptor for them.

The handler that CPython has in C writes the number there by itself; what runs in Python does
nothing. A pipe that is full already says that there is something to read.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Sequence


class Wakeup:
    """From here on these signals no longer end or stop this process."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._read, self.writer = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self.writer, False)
        _signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        for number in numbers:
            _signal.signal(number, _nothing)
            _signal.siginterrupt(number, False)

    def fileno(self) -> int:
        return self._read

    def read(self) -> list[int]:
        try:
            return list(os.read(self._read, 64))
        except BlockingIOError:
            return []


def _nothing(_number: int, _frame: object) -> None:
    """The number is in the pipe already."""
