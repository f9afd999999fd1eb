"""Record the target's packets to ports on which no listener waits, with a packet socket (the tap)
on the target's loopback.

The tap only records and denies nothing, because the target's packets never leave that loopback. It
records each TCP SYN to a port that no entry of the allowlist has, and all datagrams. The target's
own traffic on 127.0.0.0/8 and ::1 is not recorded.
"""

from __future__ import annotations

import _socket
import sys
import time

from corral.abi import linux_sockets
from corral.denials.records import allow_net
from corral.network.budgets import RateLimit
from corral.network.gateway import event_loop
from corral.network.gateway.dns_names import Names

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

HEADERS = 128
BATCH = 64
BURST, RATE = 128, 256
"""Limits for the packets that are read, at once and per second, so that a flood cannot keep the
host busy.
"""
PACKET_OUTGOING = 4
TCP, UDP = 6, 17
SYN, ACK = 0x02, 0x10
# A program in classic BPF (linux/bpf_common.h), with a line for each instruction: code, jump if
# true, jump if false, constant. Without this filter, all traffic of the gateway would wake the
# supervisor. Instruction 16 drops a packet, and instruction 17 accepts its headers.
FILTER = (
    (0x30, 0, 0, 0xFFFFF004),  # the packet's direction (SKF_AD_PKTTYPE)
    (0x15, 14, 0, PACKET_OUTGOING),
    (0x30, 0, 0, 0),
    (0x54, 0, 0, 0xF0),
    (0x15, 0, 6, 0x40),  # IPv4
    (0x30, 0, 0, 9),
    (0x15, 10, 0, UDP),
    (0x15, 0, 8, TCP),
    (0xB1, 0, 0, 0),  # x = the length of the header
    (0x50, 0, 0, 13),
    (0x05, 0, 0, 3),
    (0x30, 0, 0, 6),  # IPv6, or something else
    (0x15, 4, 0, UDP),
    (0x30, 0, 0, 53),
    (0x54, 0, 0, SYN | ACK),
    (0x15, 1, 0, SYN),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, HEADERS),
)


class Tap:
    """Owns a packet socket on the target's loopback. The caller drives it like the gateway."""

    def __init__(
        self, fd: int, names: Names, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._packets = _socket.socket(fileno=fd)
        # The filter accepts only datagrams and TCP SYNs, but the parser does not rely on that.
        linux_sockets.attach_filter(self._packets.fileno(), FILTER)
        self._names = names
        self._loop = loop = event_loop.Loop(clock)
        self.fileno, self.deadline, self.run_ready = loop.fileno, loop.deadline, loop.run_ready
        self._inputs = event_loop.Inputs(loop, RateLimit(clock, burst=BURST, rate=RATE))
        self._inputs.add(self._packets, lambda _: self._inputs.count_requests(self._read()))

    def close(self) -> None:
        self._read()
        self._inputs.close(self._packets)
        self._loop.close()

    def _read(self) -> int:
        for count in range(BATCH):
            try:
                packet, sender = self._packets.recvfrom(HEADERS)
            except OSError:
                return count
            # The socket receives each packet twice, as outgoing and as incoming, so skip the
            # outgoing one.
            if sender[2] != PACKET_OUTGOING and (found := parse_first_packet(packet)):
                self._record(*found)
        return BATCH

    def _record(self, protocol: int, address: bytes, port: int) -> None:
        if address[0] == 127 or address == bytes(15) + b"\x01":
            return
        check, destination = self._names.check, self._names.destination(address, port)
        if protocol == UDP:
            check.denials.add("udp", str(destination))
        elif port not in check.rules.ports:
            allow = allow_net(check.remedy(destination))
            check.denials.add("port", str(destination), allow=allow)


def parse_first_packet(packet: bytes) -> tuple[int, bytes, int] | None:
    """Return (protocol, address, port) of a datagram or a TCP SYN, or None for any other packet."""
    if len(packet) < 20:
        return None
    if packet[0] >> 4 == 4:
        protocol, address, at = packet[9], packet[16:20], (packet[0] & 0xF) * 4
    elif packet[0] >> 4 == 6 and len(packet) >= 40:
        protocol, address, at = packet[6], packet[24:40], 40
    else:
        return None
    segment = packet[at:]
    if len(segment) < 8 or protocol not in {TCP, UDP}:
        return None
    if protocol == TCP and (len(segment) < 14 or segment[13] & (SYN | ACK) != SYN):
        return None
    return protocol, address, int.from_bytes(segment[2:4], "big")
