"""The way out of a Windows run: the relay, or nothing."""

from __future__ import annotations

import os

from corral.network.addresses import read_network
from corral.network.denials import Denials
from corral.network.outbound import Outbound
from corral.network.proxy import proxy_of
from corral.network.rules import rules_of
from corral.windows.relay import Relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.network.traffic import Traffic
    from corral.plan import Plan
    from corral.supervise import Gateway


def outlet(plan: Plan, doors: list[int], denials: Denials | None) -> Gateway:
    """`doors` are the pipes from and to the relay's inner end."""
    if not doors:
        return Closed(denials)
    reader, writer = doors
    out = Outbound(
        rules=rules_of(plan.allow),
        denials=Denials() if denials is None else denials,
        admitted=[read_network(text) for text in plan.admit],
        proxy=proxy_of(os.environ),
    )
    return Relay(reader, writer, out)


class Closed:
    """Of a run whose network the user let go: nothing passes here, since nothing is walled off."""

    def __init__(self, denials: Denials | None) -> None:
        self.denials = Denials() if denials is None else denials

    def fileno(self) -> int:
        return -1

    def deadline(self) -> float | None:
        return None

    def run_ready(self) -> None:
        """Never anything."""

    def close(self) -> None:
        """Nothing was opened."""

    def traffic(self) -> Mapping[str, Traffic]:
        return {}
