"""The services that pass bytes in and out of a sandbox whose policy allows it."""

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
    from corral.plan.model import Plan, Results
    from corral.platforms.contract import NetworkServices, Service


def open_services(plan: Plan, results: Results, denials: Denials | None) -> NetworkServices:
    """Open them once the target has executed: init has sent its listeners by then."""
    inbound: list[Service] = []
    if plan.listen:
        dialer = published_ports.Dialer(results.get(published_ports.NamespaceHandles))
        sockets = results.get(published_ports.HostSockets).take()
        inbound.append(host_ports.PublishedPorts(sockets, dialer))
    if not plan.allow:
        return None, inbound
    channel = results.get(outbound_listeners.ListenerSockets).channel
    dns_udp, dns_tcp, packets, *listeners = channel.receive()
    channel.release()
    check = check_from_policy(plan.allow, plan.admit, os.environ, denials)
    outbound = gateway.Gateway(check, listeners=listeners, dns_udp=dns_udp, dns_tcp=dns_tcp)
    return outbound, [packet_tap.Tap(packets, outbound.names), *inbound]
