"""The services that pass bytes in and out of a sandbox whose policy allows it."""

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
    from corral.plan.results import Results
    from corral.platforms.contract import NetworkServices, Service


def open_services(plan: Plan, results: Results, denials: Denials | None) -> NetworkServices:
    """Open them once the target has executed: init has sent its listeners by then."""
    inbound: list[Service] = []
    if plan.listen:
        dialer = published_ports.Dialer(results.get(published_ports.NamespaceHandles))
        sockets = results.get(published_ports.HostSockets).take()
        inbound.append(inbound_connections.Inlets(sockets, dialer))
    if not plan.allow:
        return None, inbound
    channel = results.get(outbound_listeners.ListenerSockets).channel
    dns_udp, dns_tcp, packets, *listeners = channel.receive()
    channel.release()
    outbound = gateway.Gateway(
        rules=rules_of(plan.allow),
        denials=Denials() if denials is None else denials,
        listeners=listeners,
        dns_udp=dns_udp,
        dns_tcp=dns_tcp,
        admitted=[read_network(text) for text in plan.admit],
        proxy=proxy_of(os.environ),
    )
    tap = packet_tap.Tap(
        packets, rules=outbound.rules, names=outbound.names, denials=outbound.denials
    )
    return outbound, [tap, *inbound]
