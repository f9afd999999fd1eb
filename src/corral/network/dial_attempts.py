"""The order and the number of attempts in one dial of a host with several addresses (RFC 8305).

Both engines dial this way: `gateway/dial.py` in its event loop, `http_proxy/dial.py` in a thread.
The addresses are dialled as they are given: nothing is looked up between the check and the dial.
"""

from collections.abc import Sequence

from corral.network.budgets import DialBudget

MAX_DIALLED = 8
STAGGER_SECONDS = 0.25
"""Time that one address has before the next is tried beside it."""


class Attempts:
    """The addresses still to try (`waiting`), and the dials taken from the budget."""

    def __init__(self, addresses: Sequence[bytes], budget: DialBudget) -> None:
        self.waiting = interleave(addresses)
        self._budget = budget
        self._taken = 0

    def next(self, under_way: int) -> bytes | None:
        """Return the next address to try beside those under way; None if there is none.

        If addresses are left then, the budget is used up: ask again after the next stagger.
        """
        self.settle(under_way)
        if not self.waiting or (under_way and not self._budget.acquire()):
            return None
        self._taken += bool(under_way)
        return self.waiting.pop(0)

    def settle(self, under_way: int) -> None:
        """Return to the budget what attempts took that are no longer under way."""
        needed = min(self._taken, max(0, under_way - 1))
        self._budget.release(self._taken - needed)
        self._taken = needed


def interleave(addresses: Sequence[bytes]) -> list[bytes]:
    """Return the addresses in the host's order, but with the two families taking turns."""
    first = [item for item in addresses if len(item) == len(addresses[0])]
    others = [item for item in addresses if len(item) != len(addresses[0])]
    mixed: list[bytes] = []
    while first or others:
        mixed += [queue.pop(0) for queue in (first, others) if queue]
    return mixed[:MAX_DIALLED]
