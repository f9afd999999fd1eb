"""What a console tells corral: Ctrl-C, Ctrl-Break, and that it goes away.

The target has no console, so this reaches corral alone. A console that closes, a logoff and a
shutdown leave five seconds: the handler then stays in them, because Windows ends the process when
it returns.
"""

from __future__ import annotations

import threading

from corral.abi import win32_process as abi
from corral.abi.signal_numbers import SIGHUP, SIGINT, SIGTERM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NUMBERS = {
    abi.CTRL_C_EVENT: SIGINT,
    abi.CTRL_BREAK_EVENT: SIGTERM,
    abi.CTRL_CLOSE_EVENT: SIGHUP,
    abi.CTRL_LOGOFF_EVENT: SIGHUP,
    abi.CTRL_SHUTDOWN_EVENT: SIGHUP,
}


class Signals:
    """`fileno` is the handle of an event that is set while something waits to be read."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._wanted = frozenset(numbers)
        self._lock = threading.Lock()
        self._waiting: list[int] = []
        self._event = abi.create_event()
        self._handler = abi.on_console_event(self._hear)

    def fileno(self) -> int:
        return self._event.value

    def read(self) -> list[int]:
        with self._lock:
            found, self._waiting = self._waiting, []
            abi.ResetEvent(self._event.value)
        return found

    def close(self) -> None:
        abi.forget_console_events(self._handler)
        self._event.close()

    def _hear(self, event: int) -> bool:
        number = NUMBERS.get(event, SIGTERM)
        if number not in self._wanted:
            return True  # it was ignored when we were started
        with self._lock:
            self._waiting.append(number)
            abi.SetEvent(self._event.value)
        if number == SIGHUP:
            threading.Event().wait()
        return True
