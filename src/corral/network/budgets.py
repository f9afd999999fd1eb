"""Limit how much of the supervisor's resources a target can use: descriptors, outgoing connections
and time.

The target decides how many connections it makes, and the owner of a DNS zone decides how many
addresses a name has. Without limits, the supervisor could run out of descriptors, and then it could
no longer measure the target's resource usage.
"""

from __future__ import annotations

import _thread
import sys

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


MAX_EXTRA_DIALS = 128
ACCEPT_RETRY_SECONDS = 0.1
"""How long to wait after `accept` failed because no descriptor was free. The client is still
waiting then, so an immediate retry would only fail again.
"""
RESUME_FRACTION = 1 / 4
"""A pause of `RateLimit` ends only when this fraction of the burst is available again. If it ended
as soon as one request was allowed, the supervisor would have to wake up for every single request.
"""


@record
class Timeouts:
    """Time limits for a connection.

    The HTTP request or TLS hello that names the destination must arrive within `request_seconds`.
    At least one address of the host must answer within `connect_seconds`. A connection ends after
    `idle_seconds` without a byte in either direction.
    """

    request_seconds: float = 10.0
    connect_seconds: float = 15.0
    idle_seconds: float = 3600.0


class DialBudget:
    """Limits the extra dials of all connections together. If a connection dials several addresses
    of a host at the same time, all dials except the first are extra.
    """

    def __init__(self, max_extra: int = MAX_EXTRA_DIALS) -> None:
        self._left = max_extra
        self._lock = _thread.allocate_lock()

    def acquire(self) -> bool:
        with self._lock:
            found = self._left > 0
            self._left -= found
        return found

    def release(self, count: int) -> None:
        with self._lock:
            self._left += count


def reserve_descriptors(max_connections: int, *, others: int) -> int:
    """Raise the descriptor limit so that it allows two descriptors for each connection, plus
    `others`.

    Return the number of connections that the new limit allows. This may be less than
    `max_connections`, because the limit cannot exceed the hard limit.
    """
    if sys.platform == "win32":
        raise OSError("descriptors are not limited on Windows")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * max_connections + others
    if soft == resource.RLIM_INFINITY:
        return max_connections
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(max_connections, max(1, (soft - others) // 2))


class RateLimit:
    """Limits how often a target may make requests, so that it cannot keep the supervisor busy."""

    def __init__(self, clock: Callable[[], float], *, burst: int, rate: int) -> None:
        self._clock = clock
        self._burst = burst
        self._rate = rate
        self._left = float(burst)
        self._seen = clock()

    def use(self, count: int = 1) -> None:
        """Count requests. Each request above the limit makes `pause_seconds` longer."""
        self._refill()
        self._left -= count

    def pause_seconds(self) -> float:
        """Return how many seconds to wait before the next request is accepted, or 0 if it can be
        accepted now.
        """
        self._refill()
        if self._left >= 1:
            return 0.0
        return (self._burst * RESUME_FRACTION - self._left) / self._rate

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._seen) * self._rate)
        self._seen = now
