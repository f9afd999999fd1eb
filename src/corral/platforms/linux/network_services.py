"""Open the network services of a sandbox: published ports, the gateway, and reports of denied
connections.
"""

from __future__ import annotations

import os
import select
import sys

from corral.abi import linux_sockets
from corral.platforms.linux.descriptor_channel import DescriptorChannel
from corral.platforms.linux.mechanisms import outbound_listeners

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from corral.denials.records import Denials
    from corral.network.traffic import Traffic
    from corral.plan.model import Plan, Results
    from corral.platforms.contract import NetworkServices, Service
    from corral.platforms.linux.socket_broker import SocketBroker

POLLIN = 1


def open_services(plan: Plan, results: Results, denials: Denials) -> NetworkServices:
    """Open the services. Call this after the target's exec.

    By then the sockets that init opened in the sandbox's network namespace have arrived.
    """
    others: list[Service] = []
    if plan.listen:
        others.append(_publish_ports(results))
    found = results.get(DescriptorChannel).take("network")
    if plan.allow and found:
        return LateNetwork(found, lambda: _open_gateway(plan, found, denials)), others
    if found:
        others.append(LateNetwork(found, lambda: _open_denied_network(found, denials)))
    return None, others


def open_broker(results: Results, denials: Denials) -> SocketBroker:
    """Open the broker, which answers the target's socket calls.

    Call this before the target's exec, because the target's first call may be a socket call.
    """
    from corral.network.destinations import check_from_policy
    from corral.network.gateway import gateway
    from corral.platforms.linux.mechanisms.brokered_sockets import PreparedSockets
    from corral.platforms.linux.socket_broker import SocketBroker

    prepared = results.get(PreparedSockets)
    check = check_from_policy(prepared.step.allow, prepared.step.admit, os.environ, denials)
    return SocketBroker(gateway.Gateway(check, listeners=()), prepared, denials)


def _publish_ports(results: Results) -> Service:
    from corral.network.gateway import published_ports as host_ports
    from corral.platforms.linux.mechanisms import published_ports

    dialer = published_ports.Dialer(results.get(published_ports.NamespaceHandles))
    sockets = results.get(published_ports.HostSockets).take()
    return host_ports.PublishedPorts(sockets, dialer)


def _open_gateway(plan: Plan, found: list[int], denials: Denials) -> Service:
    from corral.network.destinations import check_from_policy
    from corral.network.gateway import gateway

    sockets = outbound_listeners.sort_sockets(found)
    check = check_from_policy(plan.allow, plan.admit, os.environ, denials)
    return gateway.Gateway(
        check, listeners=sockets.listeners, dns_udp=sockets.dns_udp, dns_tcp=sockets.dns_tcp,
        resets=sockets.resets, datagrams=sockets.datagrams,
    )  # fmt: skip


def _open_denied_network(found: list[int], denials: Denials) -> Service:
    from corral.network.gateway.denied_network import DeniedNetwork

    sockets = outbound_listeners.sort_sockets(found)
    return DeniedNetwork(denials, sockets.dns_udp, sockets.dns_tcp, sockets.resets)


class LateNetwork:
    """Opens a network service when the target's first packet arrives.

    So the target's start does not have to wait until the service is open. The first packet is not
    lost, because it stays in its socket until then.
    """

    def __init__(self, sockets: list[int], open_service: Callable[[], Service]) -> None:
        self._sockets = sockets
        self._open_service = open_service
        self._service: Service | None = None
        self._epoll = select.epoll()
        for fd in sockets:
            self._epoll.register(fd, POLLIN)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def deadline(self) -> float | None:
        return self._service.deadline() if self._service is not None else None

    def run_ready(self) -> None:
        if self._service is None and self._epoll.poll(0):
            for fd in self._sockets:
                self._epoll.unregister(fd)
            self._service = self._open_service()
            self._epoll.register(self._service.fileno(), POLLIN)
        if self._service is not None:
            self._service.run_ready()

    def traffic(self) -> Mapping[str, Traffic]:
        return self._service.traffic() if self._service is not None else {}  # type: ignore[attr-defined]

    def close(self) -> None:
        self.run_ready()
        if self._service is not None:
            self._service.close()
        else:
            linux_sockets.close_all(self._sockets)
        self._epoll.close()
