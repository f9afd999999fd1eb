"""Record the target's refused connections and lost datagrams, with the help of raw sockets in the
target's network namespace.

This module denies nothing, because the target's packets cannot leave its loopback device anyway.
When a connection is refused, the kernel sends a TCP reset from the address that the target wanted
to reach. From this reset the module learns the address. It records two kinds of refused
connections:

- connections to loopback, because the target usually wanted a service on the host but reached the
  sandbox's own loopback
- in a run with an allowlist, connections to a port that no entry of the allowlist has

In a run with an allowlist it also records datagrams, because the gateway forwards only connections,
so datagrams to other hosts are lost. Datagrams to loopback are not recorded, because they are the
target's own traffic.
"""

from __future__ import annotations

import _socket
import sys

from corral.denials.records import Denials, allow_net
from corral.network.addresses import format_address, parse_address
from corral.network.budgets import RateLimit
from corral.network.gateway import event_loop
from corral.network.rules import format_host_port

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corral.network.gateway.dns_names import Names

    Record = Callable[["Packet"], None]

BATCH = 64
BURST, RATE = 128, 256
"""The rate limit for reading packets: BURST packets at once, and then RATE per second. Without it,
a flood of packets could keep the supervisor busy.
"""
HEADERS = 128
IPV6_PKTINFO = 50
LOOPBACK6 = bytes(15) + b"\x01"
INFO_BYTES = _socket.CMSG_SPACE(20)
IPV4_HEADER_BYTES, UDP_HEADER_BYTES = 20, 8
WHY = "nothing in the sandbox listens there; the sandbox does not share the host's loopback"


class Packet:
    """A packet from a raw socket: its sender, its receiver, and the bytes after the IP header.

    A raw IPv6 socket does not deliver the IP header, so `recvmsg` returns the two addresses
    separately.
    """

    def __init__(self, one: _socket.socket) -> None:
        data, info, _, sender = one.recvmsg(HEADERS, INFO_BYTES)
        if one.family == _socket.AF_INET:
            self.sender, self.receiver = data[12:16], data[16:20]
            self.segment = data[(data[0] & 0xF) * 4 :] if len(data) > IPV4_HEADER_BYTES else b""
        else:
            self.sender = parse_address(str(sender[0]).partition("%")[0])
            found = [value for _, kind, value in info if kind == IPV6_PKTINFO]
            self.receiver = found[0][:16] if found else b""
            self.segment = data


class RawPackets:
    """Reads raw sockets and records their packets as denials. `names` is None if the run has no
    allowlist; then only refused connections to loopback are recorded. This object owns the sockets
    and closes them.
    """

    def __init__(
        self, loop: event_loop.Loop, denials: Denials, *,
        resets: Sequence[int], datagrams: Sequence[int] = (), names: Names | None = None,
    ) -> None:  # fmt: skip
        self._denials = denials
        self._names = names
        self._inputs = event_loop.Inputs(loop, RateLimit(loop.clock, burst=BURST, rate=RATE))
        self._records: dict[_socket.socket, Record] = {
            **{_socket.socket(fileno=fd): self._record_reset for fd in resets},
            **{_socket.socket(fileno=fd): self._record_datagram for fd in datagrams},
        }
        for one in self._records:
            self._inputs.add(one, lambda ready: self._inputs.count_requests(self._read(ready)))

    def close(self) -> None:
        for one in self._records:
            self._read(one)
            self._inputs.close(one)

    def _read(self, one: _socket.socket) -> int:
        for count in range(BATCH):
            try:
                packet = Packet(one)
            except OSError:
                return count
            if len(packet.segment) >= UDP_HEADER_BYTES:
                self._records[one](packet)
        return BATCH

    def _record_reset(self, packet: Packet) -> None:
        address, port = packet.sender, int.from_bytes(packet.segment[:2], "big")
        if _is_loopback(address):
            wanted = format_host_port(format_address(address), port)
            self._denials.add("loopback", wanted, allow=allow_net(wanted), why=WHY)
        elif self._names and port not in self._names.check.rules.ports:
            destination = self._names.destination(address, port)
            allow = allow_net(self._names.check.remedy(destination))
            self._denials.add("port", str(destination), allow=allow)

    def _record_datagram(self, packet: Packet) -> None:
        address, port = packet.receiver, int.from_bytes(packet.segment[2:4], "big")
        if self._names and address and not _is_loopback(address):
            self._denials.add("udp", str(self._names.destination(address, port)))


def _is_loopback(address: bytes) -> bool:
    return address == LOOPBACK6 or (len(address) == 4 and address[0] == 127)
