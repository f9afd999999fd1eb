"""The way out of a Windows run: the outer end of its relay."""

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
    from corral.plan import Plan


def outlet(plan: Plan, doors: list[int], denials: Denials | None) -> Relay:
    """`doors` are the pipes from and to the relay's inner end."""
    reader, writer = doors
    out = Outbound(
        rules=rules_of(plan.allow),
        denials=Denials() if denials is None else denials,
        admitted=[read_network(text) for text in plan.admit],
        proxy=proxy_of(os.environ),
    )
    return Relay(reader, writer, out)
