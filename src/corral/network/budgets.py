"""Budgets that keep a target from using up the supervisor: dials, descriptors, denied requests.

The target decides how many connections there are, and the owner of a name's zone how many addresses
are dialled for each. If that could use up the supervisor's descriptors, the supervisor could no
longer measure what the target uses.
"""

from __future__ import annotations

import _thread
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


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


def room_for(most: int, *, besides: int) -> int:
    """How many connections, two descriptors each and `besides` in all, the limit leaves room for;
    it is raised as far as it goes.
    """
    if sys.platform == "win32":
        raise OSError("descriptors are not limited on Windows")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * most + besides
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return most
    return max(1, (soft - besides) // 2)


SHARE = 4
"""A rest lasts until this part of the burst is there again: not a wake-up for each single one."""


class Pace:
    """Rate limit for requests that will be denied, so that they cannot keep the supervisor busy."""

    def __init__(self, clock: Callable[[], float], *, burst: int, rate: int) -> None:
        self._clock = clock
        self._burst = burst
        self._rate = rate
        self._left = float(burst)
        self._seen = clock()

    def spend(self, count: int = 1) -> None:
        """What is spent beyond the budget is owed: it lengthens the rest."""
        self._refill()
        self._left -= count

    def rest(self) -> float:
        """Seconds to rest before more may be heard; 0 while there is something left."""
        self._refill()
        return 0.0 if self._left >= 1 else (self._burst / SHARE - self._left) / self._rate

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._seen) * self._rate)
        self._seen = now
