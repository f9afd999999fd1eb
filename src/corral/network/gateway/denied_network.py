"""Serve a run without network access: answer lookups of all names except localhost with "no such
name", and record connections that the sandbox's loopback refuses.
"""

import sys

from corral.denials.records import Denials
from corral.network.destinations import DestinationCheck
from corral.network.gateway import dns_server, event_loop, raw_packets
from corral.network.gateway.dns_names import Names
from corral.network.rules import parse_rules

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers


class DeniedNetwork:
    """Answers the target's lookups, and records its refused connections to loopback.

    This object owns the given sockets and closes them. The caller waits until `fileno()` is
    readable or `deadline()` has come, and then calls `run_ready()`, again and again.
    """

    def __init__(self, denials: Denials, dns_udp: int, dns_tcp: int, resets: list[int]) -> None:
        self._loop = loop = event_loop.Loop()
        self.fileno, self.deadline, self.run_ready = loop.fileno, loop.deadline, loop.run_ready
        names = Names(DestinationCheck(parse_rules(()), denials, host_addresses=()))
        self._dns_server = dns_server.DnsServer(loop, names, udp=dns_udp, tcp=dns_tcp)
        self._packets = raw_packets.RawPackets(loop, denials, resets=resets)

    def close(self) -> None:
        self._packets.close()
        self._dns_server.close()
        self._loop.close()
