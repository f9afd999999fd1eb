"""The ways in and out of a sandbox that its policy opens, as the supervisor drives them."""

from __future__ import annotations

import os
import sys

from corral.network.destinations import check_from_policy
from corral.network.gateway import gateway, packet_tap
from corral.network.gateway import published_ports as host_ports
from corral.platforms.linux.mechanisms import outbound_listeners, published_ports

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.denials.records import Denials
    from corral.plan.model import Plan
    from corral.platforms.posix.watch import Way, Ways
    from corral.platforms.steps import Scene


def ways(plan: Plan, scene: Scene, denials: Denials | None) -> Ways:
    """Once the target has executed: what leads out of its namespaces has been handed over then."""
    inwards: list[Way] = []
    if plan.listen:
        inwards.append(
            host_ports.PublishedPorts(scene.inlets, published_ports.Dialer(*scene.handles))
        )
    if not plan.allow:
        return None, inwards
    names_udp, names_tcp, packets, *doors = outbound_listeners.receive(scene.doors[0])
    check = check_from_policy(plan.allow, plan.admit, os.environ, denials)
    way = gateway.Gateway(check, listeners=doors, dns_udp=names_udp, dns_tcp=names_tcp)
    seen = packet_tap.Tap(packets, way.names)
    return way, [seen, *inwards]
