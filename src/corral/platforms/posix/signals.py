"""Block, reset and read signals with functions that every POSIX system has.

`reset` is called before exec, because Python ignores SIGPIPE and SIGXFSZ, and the new program would
ignore them too. The module `signal` is not used, because it would import `enum` on the start path.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def block(numbers: Iterable[int]) -> None:
    _signal.pthread_sigmask(_signal.SIG_BLOCK, numbers)


def unblock(numbers: Iterable[int]) -> None:
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, numbers)


def reset() -> None:
    """Unblock every signal, and reset its effect to the default instead of corral's handler."""
    _signal.set_wakeup_fd(-1)
    for number in _signal.valid_signals():
        try:
            _signal.signal(number, _signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # SIGKILL, SIGSTOP and the C library's own signals cannot be set
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


class SignalPipe:
    """A pipe to which the number of each signal in `numbers` is written when the signal arrives.

    The signals have no other effect on this process.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._read, self.writer = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self.writer, False)
        _signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        for number in numbers:
            _signal.signal(number, _do_nothing)
            _signal.siginterrupt(number, False)

    def fileno(self) -> int:
        return self._read

    def read(self) -> list[int]:
        try:
            return list(os.read(self._read, 64))
        except BlockingIOError:
            return []


def _do_nothing(_number: int, _frame: object) -> None:
    """Do nothing, because Python has already written the number to the pipe."""
