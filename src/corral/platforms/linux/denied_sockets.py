"""Report attempts to use the network in runs without a network namespace and without allowed hosts.

In these runs the call `socket` itself is denied, so corral never sees which address or name the
target wanted to reach. So the report only recommends `corral learn`, which shows the names.
"""

from __future__ import annotations

import sys
import time

from corral.network.budgets import RateLimit
from corral.platforms.linux.notified_calls import UNKNOWN, Decision

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.abi.linux_notifications import Notification
    from corral.denials.records import Denials

WHY = "without namespaces corral cannot see the address; `corral learn` shows it"
BURST, RATE = 64, 64
"""The rate limit for answering calls: a burst of BURST calls, and then RATE calls per second.
Further calls wait, which does not cost CPU time.
"""


class DeniedSockets:
    def __init__(self, denials: Denials) -> None:
        self._denials = denials
        self._rate_limit = RateLimit(time.monotonic, burst=BURST, rate=RATE)

    def pause_seconds(self) -> float:
        return self._rate_limit.pause_seconds()

    def decide(self, _call: str, _request: Notification) -> Decision:
        self._rate_limit.use()
        return Decision(verdict="deny", then=lambda: self._denials.add("address", UNKNOWN, why=WHY))
