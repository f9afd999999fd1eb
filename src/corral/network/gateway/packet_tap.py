"""What the target tried where nobody listens: first packets on its loopback, seen by a tap.

Everything the target sends stays on that loopback, so nothing is held back here, only written down:
a TCP SYN to a port that no rule has, and datagrams, which are never let out. Its own traffic on
127.0.0.0/8 and ::1 is its own business.
"""

from __future__ import annotations

import _socket
import array
import struct
import sys
import time

from corral.network.addresses import write
from corral.network.budgets import Pace
from corral.network.gateway import event_loop
from corral.network.guard import can_be_named
from corral.network.rules import written

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.denials.records import Denials
    from corral.network.gateway.dns_names import Names
    from corral.network.rules import Rules

HEADERS = 128
BATCH = 64
BURST, RATE = 128, 256
"""Packets looked at, at once and a second: a flood must not cost the host its time."""
PACKET_OUTGOING = 4
TCP, UDP = 6, 17
SYN, ACK = 0x02, 0x10
SO_ATTACH_FILTER = 26
# linux/bpf_common.h: code, jump if true, jump if false, constant. Without it all that is passed on
# would also wake the supervisor here. 16 is "drop", 17 takes the headers.
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
    (0x30, 0, 0, 6),  # IPv6, or nothing that is read
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
        self,
        fd: int,
        *,
        rules: Rules,
        names: Names,
        denials: Denials,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._packets = _socket.socket(fileno=fd)
        self._packets.setblocking(False)
        attach(self._packets)
        self._rules = rules
        self._names = names
        self._denials = denials
        self._loop = event_loop.Loop(clock)
        self._pace = Pace(clock, burst=BURST, rate=RATE)
        self._watch()

    def fileno(self) -> int:
        return self._loop.fileno()

    def deadline(self) -> float | None:
        return self._loop.deadline()

    def run_ready(self) -> None:
        self._loop.run_ready()

    def close(self) -> None:
        self._read()
        self._loop.forget(self._packets.fileno())
        self._packets.close()
        self._loop.close()

    def _watch(self) -> None:
        self._loop.watch(self._packets.fileno(), event_loop.IN, lambda _: self._look())

    def _look(self) -> None:
        self._pace.spend(self._read())
        if rest := self._pace.rest():
            self._loop.forget(self._packets.fileno())
            self._loop.after(rest, self._watch)

    def _read(self) -> int:
        for count in range(BATCH):
            try:
                packet, sender = self._packets.recvfrom(HEADERS)
            except OSError:
                return count
            # Each packet passes twice, going out and coming in.
            if sender[2] != PACKET_OUTGOING and (found := first_packet(packet)):
                self._record(*found)
        return BATCH

    def _record(self, protocol: int, address: bytes, port: int) -> None:
        if address[0] == 127 or address == bytes(15) + b"\x01":
            return
        name = self._names.name_of(address)
        place = written(name or write(address), port)
        if protocol == UDP:
            self._denials.add("udp", place, allow="")
        elif port not in self._rules.ports:
            sayable = name or (can_be_named(address) and address not in self._names.network)
            self._denials.add("port", place, allow=place if sayable else "")


def attach(packets: _socket.socket) -> None:
    """Let the kernel drop all but first packets: what it keeps is still read with care."""
    code = array.array("B", b"".join(struct.pack("HBBI", *item) for item in FILTER))
    program = struct.pack("HP", len(FILTER), code.buffer_info()[0])
    packets.setsockopt(_socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def first_packet(packet: bytes) -> tuple[int, bytes, int] | None:
    """(protocol, destination, port) of a datagram or a TCP SYN; None for anything else."""
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
