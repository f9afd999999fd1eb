"""Records what the target tried where nothing listens, by a tap on its loopback.

Everything the target sends stays on that loopback, so the tap stops nothing. It records a TCP SYN
to a port that no rule has, and datagrams, which never leave. The target's own traffic on
127.0.0.0/8 and ::1 is not recorded.
"""

import _socket
import array
import struct
import sys
import time
from collections.abc import Callable

from corral.network.budgets import RateLimit
from corral.network.gateway import event_loop
from corral.network.gateway.dns_names import Names

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

HEADERS = 128
BATCH = 64
BURST, RATE = 128, 256
"""Packets read, at once and a second: a flood must not cost the host its time."""
PACKET_OUTGOING = 4
TCP, UDP = 6, 17
SYN, ACK = 0x02, 0x10
SO_ATTACH_FILTER = 26
# linux/bpf_common.h: code, jump if true, jump if false, constant. Without the filter all traffic
# of the gateway would also wake the supervisor here. 16 is "drop", 17 takes the headers.
FILTER = (
    (0x30, 0, 0, 0xFFFFF004),  # the packet's direction (SKF_AD_PKTTYPE)
    (0x15, 14, 0, PACKET_OUTGOING),
    (0x30, 0, 0, 0),
    (0x54, 0, 0, 0xF0),
    (0x15, 0, 6, 0x40),  # IPv4
    (0x30, 0, 0, 9),
    (0x15, 10, 0, UDP),
    (0x15, 0, 8, TCP),
    (0xB1, 0, 0, 0),  # x: the length of the header
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
    """Takes over a packet socket on the target's loopback; driven like the gateway."""

    def __init__(
        self, fd: int, names: Names, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._packets = _socket.socket(fileno=fd)
        attach_filter(self._packets)
        self._names = names
        self._loop = loop = event_loop.Loop(clock)
        self.fileno, self.deadline, self.run_ready = loop.fileno, loop.deadline, loop.run_ready
        self._rate_limit = RateLimit(clock, burst=BURST, rate=RATE)
        self._inputs = event_loop.Inputs(self._loop)
        self._inputs.add(self._packets, self._ready)

    def close(self) -> None:
        self._read()
        self._inputs.close(self._packets)
        self._loop.close()

    def _ready(self, _packets: _socket.socket) -> None:
        self._rate_limit.use(self._read())
        if seconds := self._rate_limit.pause_seconds():
            self._inputs.pause(seconds)

    def _read(self) -> int:
        for count in range(BATCH):
            try:
                packet, sender = self._packets.recvfrom(HEADERS)
            except OSError:
                return count
            # Each packet passes twice, going out and coming in.
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
            check.denials.add("port", str(destination), allow=check.remedy(destination))


def attach_filter(packets: _socket.socket) -> None:
    """Let the kernel drop all but first packets; those are still read with care."""
    code = array.array("B", b"".join(struct.pack("HBBI", *item) for item in FILTER))
    program = struct.pack("HP", len(FILTER), code.buffer_info()[0])
    packets.setsockopt(_socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def parse_first_packet(packet: bytes) -> tuple[int, bytes, int] | None:
    """Return (protocol, address, port) of a datagram or a TCP SYN; None for anything else."""
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
