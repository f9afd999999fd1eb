"""How much of its time the supervisor gives to what leads nowhere.

The target decides how often it asks for what it may not have, and its own limits do not count what
the answer costs. So each kind of answer has a budget: `burst` at once, `rate` a second after that.
Whoever exceeds it is not heard for a while, and what it sent waits in the kernel or is lost there.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SHARE = 4
"""A rest lasts until this part of the burst is there again: not a wake-up for each single one."""


class Pace:
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
