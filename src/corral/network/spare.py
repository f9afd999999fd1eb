"""An end to how many addresses are dialled at once, over all connections.

The target decides how many connections there are, and whoever runs the zone of a name how many
addresses are dialled for each. If that could use up the supervisor's descriptors, it could no
longer look at what the target uses.
"""

from __future__ import annotations

import _thread

MOST_SPARE = 128


class Spare:
    """What all calls together may have beyond one each, for further addresses of the same host."""

    def __init__(self, most: int = MOST_SPARE) -> None:
        self._left = most
        self._lock = _thread.allocate_lock()

    def take(self) -> bool:
        with self._lock:
            found = self._left > 0
            self._left -= found
        return found

    def give(self, count: int) -> None:
        with self._lock:
            self._left += count
