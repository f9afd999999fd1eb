"""Where every connection of the target ends: listeners of corral's in its own network namespace.

Local routes for all addresses lead everything back to loopback, so a connection to any address
reaches a listener on its port, and the address it wanted can be read from the accepted socket. The
listeners are made inside and handed to the supervisor, outside, where the gateway answers them.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import sys

from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Place
    from corral.platforms.steps import Scene

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
MOST_DESCRIPTORS = 253
"""SCM_MAX_FD: what one message can carry."""


@record
class Door:
    """The way by which the listeners get out."""

    place: Place = "supervisor"

    def describe(self) -> str:
        return "a socket pair for the gateway's listeners"


@record
class Listeners:
    """For these ports, and for names on port 53 of loopback."""

    ports: tuple[int, ...]
    place: Place = "init"

    def describe(self) -> str:
        ports = ", ".join(map(str, self.ports))
        return f"network: every address leads to corral's gateway on ports {ports}; names too"


def apply(step: Door | Listeners, scene: Scene) -> None:
    if isinstance(step, Door):
        outside, inside = socket.socketpair()
        scene.doors = (outside.detach(), inside.detach())
        return
    for family in (socket.AF_INET, socket.AF_INET6):
        _route_everything(family)
    made = [_names(socket.SOCK_DGRAM), _names(socket.SOCK_STREAM), _tap()]
    made += [_listen(family, port) for family in SCOPES for port in step.ports]
    descriptors = array.array("i", [item.fileno() for item in made])
    with socket.socket(fileno=scene.doors[1]) as channel:
        channel.sendmsg([b"L"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    for item in made:
        item.close()


def receive(channel: int) -> list[int]:
    """In the supervisor: names over UDP, names over TCP, the tap, then the listeners."""
    size = MOST_DESCRIPTORS * array.array("i").itemsize
    with socket.socket(fileno=channel) as door:
        _, ancillary, _, _ = door.recvmsg(1, socket.CMSG_SPACE(size))
    found = array.array("i")
    for _, _, raw in ancillary:
        found.frombytes(raw[: len(raw) - len(raw) % found.itemsize])
    return list(found)


def verify(_step: Door | Listeners, _scene: Scene) -> None:
    """There is no device but loopback that a packet could leave by."""
    with open("/proc/self/net/dev", "rb") as file:
        devices = [line.partition(b":")[0].strip() for line in file.readlines()[2:]]
    if devices != [b"lo"]:
        raise OSError(0, f"network devices: {devices}")


def _names(kind: socket.SocketKind) -> socket.socket:
    made = socket.socket(socket.AF_INET, kind)
    made.bind(("127.0.0.1", DNS_PORT))
    if kind == socket.SOCK_STREAM:
        made.listen(BACKLOG)
    return made


def _tap() -> socket.socket:
    """Sees the first packet of everything, also of what no listener takes."""
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
