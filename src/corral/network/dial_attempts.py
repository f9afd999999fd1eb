"""Choose the order in which to dial a host's addresses, and how many to dial at the same time
("Happy Eyeballs", RFC 8305).

The caller has looked up the host's name and checked the addresses. This module never looks the name
up again, because a second lookup could return addresses that were not checked.
"""

from __future__ import annotations

from corral.network.budgets import DialBudget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


MAX_DIALLED = 8
STAGGER_SECONDS = 0.25
"""How long one address is tried alone before the next address is tried as well."""


class Attempts:
    """Chooses which address of a host to dial next, within the budget that all connections share.
    `waiting` contains the addresses that have not been tried.
    """

    def __init__(self, addresses: Sequence[bytes], budget: DialBudget) -> None:
        self.waiting = interleave(addresses)
        self._budget = budget
        self._taken = 0

    def next(self, under_way: int) -> bytes | None:
        """Return the next address to try while `under_way` attempts are running.

        Return None if no address is left, or if other attempts are running and the shared budget is
        used up. The first attempt needs no budget. If addresses are left in `waiting`, the caller
        should try again after STAGGER_SECONDS.
        """
        self.settle(under_way)
        if not self.waiting or (under_way and not self._budget.acquire()):
            return None
        self._taken += bool(under_way)
        return self.waiting.pop(0)

    def settle(self, under_way: int) -> None:
        """Give back the budget of finished attempts. `under_way` is the number still running."""
        needed = min(self._taken, max(0, under_way - 1))
        self._budget.release(self._taken - needed)
        self._taken = needed


def interleave(addresses: Sequence[bytes]) -> list[bytes]:
    """Return at most MAX_DIALLED addresses, alternating between IPv4 and IPv6."""
    first = [item for item in addresses if len(item) == len(addresses[0])]
    others = [item for item in addresses if len(item) != len(addresses[0])]
    mixed: list[bytes] = []
    while first or others:
        mixed += [queue.pop(0) for queue in (first, others) if queue]
    return mixed[:MAX_DIALLED]
