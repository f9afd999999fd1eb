"""Report that a target without a network namespace wanted the network, of which it gets nothing.

There the filter denies `socket` itself, so no address or name is ever seen. To see one, the target
would need a socket of the host's network, as in a run with an allowlist. That is more than a denied
run should have, so the report only names `corral learn`, which shows the names.
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

WHY = "without namespaces its name is not seen; `corral learn` shows it"
BURST, RATE = 64, 64
"""The number of calls that are answered at once, and then per second. Waiting costs no time."""


class DeniedSockets:
    """Deny every internet socket that the filter passes on."""

    def __init__(self, denials: Denials) -> None:
        self._denials = denials
        self._rate_limit = RateLimit(time.monotonic, burst=BURST, rate=RATE)

    def pause_seconds(self) -> float:
        return self._rate_limit.pause_seconds()

    def decide(self, _call: str, _request: Notification) -> Decision:
        self._rate_limit.use()
        return Decision(verdict="deny", then=lambda: self._denials.add("address", UNKNOWN, why=WHY))
