"""The ways in and out of a sandbox that its policy opens, as the supervisor drives them."""

from __future__ import annotations

import os
import sys

from corral.linux import inward, listeners
from corral.network import gateway, inlets, tap
from corral.network.addresses import read_network
from corral.network.denials import Denials
from corral.network.proxy import proxy_of
from corral.network.rules import rules_of

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan import Plan
    from corral.posix.enter import Scene
    from corral.supervise import Way, Ways


def ways(plan: Plan, scene: Scene, denials: Denials | None) -> Ways:
    """Once the target has executed: what leads out of its namespaces has been handed over then."""
    inwards: list[Way] = []
    if plan.listen:
        inwards.append(inlets.Inlets(scene.inlets, inward.Dialer(*scene.handles)))
    if not plan.allow:
        return None, inwards
    names_udp, names_tcp, packets, *doors = listeners.receive(scene.doors[0])
    way = gateway.Gateway(
        rules=rules_of(plan.allow),
        denials=Denials() if denials is None else denials,
        listeners=doors,
        dns_udp=names_udp,
        dns_tcp=names_tcp,
        admitted=[read_network(text) for text in plan.admit],
        proxy=proxy_of(os.environ),
    )
    seen = tap.Tap(packets, rules=way.rules, names=way.names, denials=way.denials)
    return way, [seen, *inwards]
