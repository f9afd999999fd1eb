"""Record refused connections to the sandbox's own loopback.

They are recorded because the target usually wants a service of the host, but the sandbox has its
own loopback. A raw socket receives the kernel's answers: its filter accepts only TCP resets that
answer a refused connection. The sender of such a reset is the address to which the target wanted to
connect.
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
    from collections.abc import Sequence

BATCH = 64
BURST, RATE = 128, 256
"""Limits for the resets that are read, at once and per second."""
HEADERS = 128
WHY = "nothing listens there inside; the sandbox does not share the host's loopback"


class RefusedConnections:
    """Owns the raw sockets, and reads them in a loop."""

    def __init__(self, loop: event_loop.Loop, denials: Denials, raw: Sequence[int]) -> None:
        self._denials = denials
        self._inputs = event_loop.Inputs(loop, RateLimit(loop.clock, burst=BURST, rate=RATE))
        self._sockets = [_socket.socket(fileno=fd) for fd in raw]
        for one in self._sockets:
            self._inputs.add(one, lambda ready: self._inputs.count_requests(self._read(ready)))

    def close(self) -> None:
        for one in self._sockets:
            self._read(one)
            self._inputs.close(one)

    def _read(self, one: _socket.socket) -> int:
        for count in range(BATCH):
            try:
                packet, sender = one.recvfrom(HEADERS)
            except OSError:
                return count
            # An IPv4 raw socket receives the IP header as well, so the TCP header starts after it.
            start = (packet[0] & 0xF) * 4 if one.family == _socket.AF_INET else 0
            self._record(str(sender[0]).partition("%")[0], packet[start : start + 2])
        return BATCH

    def _record(self, host: str, port: bytes) -> None:
        address = parse_address(host)
        if address[0] != 127 and address != bytes(15) + b"\x01":
            return
        wanted = format_host_port(format_address(address), int.from_bytes(port, "big"))
        self._denials.add("loopback", wanted, allow=allow_net(wanted), why=WHY)
