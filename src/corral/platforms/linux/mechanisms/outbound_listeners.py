"""Listeners in the target's network namespace, at which every connection of the target ends.

Local routes for all addresses lead everything back to loopback, so a connection to any address
reaches a listener on its port, and the address it wanted can be read from the accepted socket. Init
makes the listeners and hands them to the supervisor, where the gateway answers them.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

from corral.platforms.linux import descriptor_channel
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage

# linux/rtnetlink.h
RTM_NEWROUTE = 24
NLM_F_REQUEST, NLM_F_ACK, NLM_F_EXCL, NLM_F_CREATE = 0x1, 0x4, 0x200, 0x400
NLMSG_ERROR = 2
RT_TABLE_LOCAL, RTPROT_BOOT, RTN_LOCAL, RTA_OIF = 255, 3, 2, 4
SCOPES = {socket.AF_INET: 254, socket.AF_INET6: 0}
LOOPBACK_INDEX = 1
BACKLOG = 512
ETH_P_ALL = 3
DNS_PORT = 53


@record
class ListenerSockets:
    """In the supervisor: DNS over UDP, DNS over TCP, the packet tap, then the listeners."""

    channel: descriptor_channel.DescriptorChannel

    def release(self) -> None:
        self.channel.release()


@record
class ListenerChannel:
    name = "listener_channel"
    stage: Stage = "supervisor"
    verify = unverified

    def describe(self) -> str:
        return "a socket pair for the gateway's listeners"

    def apply(self, results: Results) -> None:
        results.add(ListenerSockets(channel=descriptor_channel.DescriptorChannel(results)))


@record
class OutboundListeners:
    """Listen on these ports of every address, and for DNS on port 53 of loopback."""

    name = "outbound_listeners"
    ports: tuple[int, ...]
    stage: Stage = "init"

    def describe(self) -> str:
        ports = ", ".join(map(str, self.ports))
        return f"network: every address leads to corral's gateway on ports {ports}; names too"

    def apply(self, results: Results) -> None:
        for family in SCOPES:
            _route_everything(family)
        made = [_listen_for_dns(kind) for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)]
        made.append(_tap_packets())
        made += [_listen(family, port) for family in SCOPES for port in self.ports]
        results.get(ListenerSockets).channel.send([item.fileno() for item in made])
        for item in made:
            item.close()

    def verify(self, _results: Results) -> None:
        """Check that there is no device but loopback by which a packet could leave."""
        with open("/proc/self/net/dev", "rb") as file:
            devices = [line.partition(b":")[0].strip() for line in file.readlines()[2:]]
        if devices != [b"lo"]:
            raise OSError(0, f"network devices: {devices}")


def _listen_for_dns(kind: socket.SocketKind) -> socket.socket:
    made = socket.socket(socket.AF_INET, kind)
    made.bind(("127.0.0.1", DNS_PORT))
    if kind == socket.SOCK_STREAM:
        made.listen(BACKLOG)
    return made


def _tap_packets() -> socket.socket:
    """Return a socket that sees every packet, also those that no listener takes."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
    made.bind(("lo", ETH_P_ALL))
    return made


def _listen(family: socket.AddressFamily, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind(("", port))
    made.listen(BACKLOG)
    return made


def _route_everything(family: socket.AddressFamily) -> None:
    """`ip route add local default dev lo table local`, as one netlink message."""
    body = struct.pack(
        "=BBBBBBBBI", family, 0, 0, 0, RT_TABLE_LOCAL, RTPROT_BOOT, SCOPES[family], RTN_LOCAL, 0
    )
    body += struct.pack("=HHI", 8, RTA_OIF, LOOPBACK_INDEX)
    flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_EXCL | NLM_F_CREATE
    message = struct.pack("=IHHII", 16 + len(body), RTM_NEWROUTE, flags, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.send(message)
        answer = netlink.recv(4096)
    kind, code = struct.unpack_from("=4xH10xi", answer)
    if kind != NLMSG_ERROR or code:
        raise OSError(-code, os.strerror(-code) if code else "no answer", "local route")
