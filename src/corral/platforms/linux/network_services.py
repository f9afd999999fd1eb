"""The ways in and out of a sandbox that its policy opens, as the supervisor drives them."""

from __future__ import annotations

import os
import sys

from corral.denials.records import Denials
from corral.network.addresses import read_network
from corral.network.gateway import gateway, inbound_connections, packet_tap
from corral.network.host_proxy import proxy_of
from corral.network.rules import rules_of
from corral.platforms.linux.mechanisms import outbound_listeners, published_ports

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Plan
    from corral.platforms.posix.watch import Way, Ways
    from corral.platforms.steps import Scene


def ways(plan: Plan, scene: Scene, denials: Denials | None) -> Ways:
    """Once the target has executed: what leads out of its namespaces has been handed over then."""
    inwards: list[Way] = []
    if plan.listen:
        inwards.append(
            inbound_connections.Inlets(scene.inlets, published_ports.Dialer(*scene.handles))
        )
    if not plan.allow:
        return None, inwards
    names_udp, names_tcp, packets, *doors = outbound_listeners.receive(scene.doors[0])
    way = gateway.Gateway(
        rules=rules_of(plan.allow),
        denials=Denials() if denials is None else denials,
        listeners=doors,
        dns_udp=names_udp,
        dns_tcp=names_tcp,
        admitted=[read_network(text) for text in plan.admit],
        proxy=proxy_of(os.environ),
    )
    seen = packet_tap.Tap(packets, rules=way.rules, names=way.names, denials=way.denials)
    return way, [seen, *inwards]
