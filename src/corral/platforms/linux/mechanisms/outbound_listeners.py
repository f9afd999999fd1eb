"""Create sockets in the target's network namespace. Init sends them to the supervisor.

In every run with a network namespace, corral has a DNS server on the sandbox's loopback, and raw
sockets that see refused connections. With `network.allow`, local routes lead all addresses to
loopback, where corral listens on the ports that the policy allows. The local address of an accepted
connection is the address that the target wanted to reach.
"""

from __future__ import annotations

import os
import struct
import sys

from corral.abi import linux as abi
from corral.abi import linux_sockets as sockets
from corral.platforms.linux.descriptor_channel import DescriptorChannel
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.plan.model import Results, Stage

EAFNOSUPPORT = 97
ON = struct.pack("=i", 1)
# From linux/netlink.h and linux/rtnetlink.h.
RTM_NEWROUTE = 24
NLM_F_REQUEST, NLM_F_ACK, NLM_F_EXCL, NLM_F_CREATE = 0x1, 0x4, 0x200, 0x400
NLMSG_ERROR = 2
RT_TABLE_LOCAL, RTPROT_BOOT, RTN_LOCAL, RTA_OIF = 255, 3, 2, 4
SCOPES = {sockets.AF_INET: 254, sockets.AF_INET6: 0}
LOOPBACK_INDEX = 1
BACKLOG = 512
DNS_PORT = 53
LOCALHOST = bytes((127, 0, 0, 1))
ANY = {sockets.AF_INET: bytes(4), sockets.AF_INET6: bytes(16)}
RST = 4
# Each instruction is (code, jump if true, jump if false, constant), as in linux/bpf_common.h. The
# filters accept TCP resets with sequence number 0. The kernel sends such a reset only to refuse a
# connection, not to end an open one. Raw sockets see the IP header in IPv4, but not in IPv6, so the
# two filters read the fields at different positions.
IF_ZERO = ((0x15, 1, 0, 0), (0x06, 0, 0, 0), (0x06, 0, 0, 128))
REFUSED = {
    sockets.AF_INET: (
        (0xB1, 0, 0, 0),  # loads the length of the IP header into register x
        (0x50, 0, 0, 13),
        (0x45, 0, 2, RST),
        (0x40, 0, 0, 4),
        *IF_ZERO,
    ),
    sockets.AF_INET6: (
        (0x30, 0, 0, 13),
        (0x45, 0, 2, RST),
        (0x20, 0, 0, 4),
        *IF_ZERO,
    ),
}
# Skip datagrams to 127.0.0.0/8, such as name lookups, because corral does not record them.
DATAGRAMS = {
    sockets.AF_INET: (
        (0x30, 0, 0, 16),
        (0x15, 0, 1, LOCALHOST[0]),
        (0x06, 0, 0, 0),
        (0x06, 0, 0, 128),
    ),
    sockets.AF_INET6: ((0x06, 0, 0, 128),),
}


def families() -> list[int]:
    """Return the address families that this kernel supports. Some kernels do not support IPv6."""
    return [family for family in SCOPES if _exists(family)]


@record
class NetworkSockets:
    """The sockets of a run, in the order in which init sends them.

    Without network access, `datagrams` and `listeners` are empty.
    """

    dns_udp: int
    dns_tcp: int
    resets: list[int]
    datagrams: list[int]
    listeners: list[int]


def sort_sockets(found: list[int]) -> NetworkSockets:
    count = len(families())
    first, second = 2 + count, 2 + 2 * count
    return NetworkSockets(
        dns_udp=found[0], dns_tcp=found[1], resets=found[2:first], datagrams=found[first:second],
        listeners=found[second:],
    )  # fmt: skip


@record
class DeniedNetwork:
    """Creates the sockets for a run without network access.

    With these sockets the supervisor answers name lookups, sees refused connections, and reports
    both.
    """

    name = "denied_network"
    stage: Stage = "init"
    verify = unverified

    def describe(self) -> str:
        return (
            "network: no name resolves to an address; lookups and refused connections are reported"
        )

    def apply(self, results: Results) -> None:
        _send(results, _make_always(families()))


@record
class OutboundListeners:
    """Listens on `ports` of all addresses, and on port 53 of loopback for DNS."""

    name = "outbound_listeners"
    ports: tuple[int, ...]
    stage: Stage = "init"

    def describe(self) -> str:
        ports = ", ".join(map(str, self.ports))
        return f"network: corral's gateway gets all lookups, and all connections to ports {ports}"

    def apply(self, results: Results) -> None:
        found = families()
        for family in found:
            _route_everything(family)
        made = [*_make_always(found), *map(_see_datagrams, found)]
        made += [_listen(family, port) for family in found for port in self.ports]
        _send(results, made)

    def verify(self, _results: Results) -> None:
        """Check that loopback is the only network device. Without other devices no packet can
        leave.
        """
        lines = abi.read_file("/proc/self/net/dev").splitlines()
        devices = [line.partition(b":")[0].strip() for line in lines[2:]]
        if devices != [b"lo"]:
            raise OSError(0, f"the sandbox has network devices other than loopback: {devices}")


def _send(results: Results, made: list[int]) -> None:
    channel = results.get(DescriptorChannel)
    for at in range(0, len(made), sockets.MAX_DESCRIPTORS):
        channel.send("network", made[at : at + sockets.MAX_DESCRIPTORS])
    sockets.close_all(made)


def _make_always(families: Iterable[int]) -> list[int]:
    kinds = (sockets.SOCK_DGRAM, sockets.SOCK_STREAM)
    return [*map(_listen_for_dns, kinds), *map(_see_refused, families)]


def _exists(family: int) -> bool:
    try:
        os.close(sockets.socket(family, sockets.SOCK_DGRAM))
    except OSError as error:
        if error.errno == EAFNOSUPPORT:
            return False
        raise
    return True


def _listen_for_dns(kind: int) -> int:
    made = sockets.socket(sockets.AF_INET, kind)
    sockets.bind(made, sockets.inet_address(LOCALHOST, DNS_PORT))
    if kind == sockets.SOCK_STREAM:
        sockets.listen(made, BACKLOG)
    return made


def _see_refused(family: int) -> int:
    made = sockets.socket(family, sockets.SOCK_RAW, sockets.IPPROTO_TCP)
    sockets.attach_filter(made, REFUSED[family])
    return made


def _see_datagrams(family: int) -> int:
    made = sockets.socket(family, sockets.SOCK_RAW, sockets.IPPROTO_UDP)
    sockets.attach_filter(made, DATAGRAMS[family])
    if family == sockets.AF_INET6:
        sockets.setsockopt(made, sockets.IPPROTO_IPV6, sockets.IPV6_RECVPKTINFO, ON)
    return made


def _listen(family: int, port: int) -> int:
    made = sockets.socket(family, sockets.SOCK_STREAM)
    if family == sockets.AF_INET6:
        sockets.setsockopt(made, sockets.IPPROTO_IPV6, sockets.IPV6_V6ONLY, ON)
    sockets.bind(made, sockets.inet_address(ANY[family], port))
    sockets.listen(made, BACKLOG)
    return made


def _route_everything(family: int) -> None:
    """Send one netlink message that does `ip route add local default dev lo table local`."""
    body = struct.pack(
        "=BBBBBBBBI", family, 0, 0, 0, RT_TABLE_LOCAL, RTPROT_BOOT, SCOPES[family], RTN_LOCAL, 0
    )
    body += struct.pack("=HHI", 8, RTA_OIF, LOOPBACK_INDEX)
    flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_EXCL | NLM_F_CREATE
    message = struct.pack("=IHHII", 16 + len(body), RTM_NEWROUTE, flags, 1, 0) + body
    netlink = sockets.socket(sockets.AF_NETLINK, sockets.SOCK_RAW)
    try:
        abi.syscall("sendto", netlink, message, len(message), 0, None, 0)
        answer = os.read(netlink, 4096)
    finally:
        os.close(netlink)
    kind, code = struct.unpack_from("=4xH10xi", answer)
    if kind != NLMSG_ERROR or code:
        text = os.strerror(-code) if code else "the kernel sent no acknowledgement"
        raise OSError(-code, text, "local route")
