"""What the target is told about names. No lookup of the target's ever leaves the host by itself.

An allowed name has an address of its own in 198.18.0.0/15, the same for the whole run and never
another name's: a connection to that address is a connection to that name. It has no AAAA record and
no others: an empty answer makes every client take the A record at once. A name that is not allowed
does not exist (REFUSED would make musl's resolver wait and ask again), and that is recorded.
"""

from __future__ import annotations

from corral.network import dns
from corral.network.rules import SYNTHETIC, is_host_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.network.addresses import Network
    from corral.network.denials import Denials
    from corral.network.rules import Rules

MOST_NAMES = 4096
REVERSE = ".in-addr.arpa"
LOOPBACK = {dns.A: bytes((127, 0, 0, 1)), dns.AAAA: bytes(15) + b"\x01"}


class Names:
    """Names and their synthetic addresses, given out once each."""

    def __init__(
        self,
        rules: Rules,
        denials: Denials,
        *,
        most: int = MOST_NAMES,
        network: Network = SYNTHETIC,
    ) -> None:
        self.rules = rules
        self.denials = denials
        self.most = most
        self.network = network
        self._addresses: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}

    def name_of(self, address: bytes) -> str | None:
        """The name that has this synthetic address; None if nobody was told of it."""
        return self._names.get(address)

    def address_of(self, name: str) -> bytes | None:
        """The address of an allowed name, a new one if need be; None when all are given out."""
        found = self._addresses.get(name)
        if found is None and len(self._names) < self.most:
            number = int.from_bytes(self.network.address, "big") + len(self._names) + 1
            found = number.to_bytes(4, "big")
            self._addresses[name] = found
            self._names[found] = name
        return found

    def respond(self, data: bytes) -> bytes | None:
        """The answer to a message, whatever it is; None: it gets none."""
        try:
            query = dns.parse_query(data)
        except dns.MalformedError as error:
            return dns.build_complaint(data, error.code)
        if query.flags & dns.RESPONSE:
            return None
        if query.edns:
            return dns.build_answer(query, dns.BADVERS)
        return self._answer(query)

    def _answer(self, query: dns.Query) -> bytes:
        if self.rules.matches(query.name):
            return self._allowed(query)
        # The sandbox's own loopback (RFC 6761): nothing of the host is meant.
        if query.name == "localhost" or query.name.endswith(".localhost"):
            own = LOOPBACK.get(query.kind)
            found = () if own is None else (dns.Answer(kind=query.kind, data=own),)
            return dns.build_answer(query, dns.NOERROR, found)
        if query.kind == dns.PTR and query.name.endswith(REVERSE):
            name = self._names.get(_reversed(query.name))
            if name is not None:
                pointer = dns.Answer(kind=dns.PTR, data=dns.build_name(name))
                return dns.build_answer(query, dns.NOERROR, (pointer,))
        allow = query.name if is_host_name(query.name) else ""
        self.denials.add("name", query.name or ".", allow=allow)
        return dns.build_answer(query, dns.NXDOMAIN)

    def _allowed(self, query: dns.Query) -> bytes:
        if query.kind not in {dns.A, dns.ANY}:
            return dns.build_answer(query, dns.NOERROR)
        address = self.address_of(query.name)
        if address is None:
            self.denials.add("limit", f"more than {self.most} names", allow="")
            return dns.build_answer(query, dns.SERVFAIL)
        return dns.build_answer(query, dns.NOERROR, (dns.Answer(kind=dns.A, data=address),))


def _reversed(name: str) -> bytes:
    """4.3.2.1.in-addr.arpa -> 1.2.3.4; nothing if it is not that."""
    from corral.network.addresses import read_v4

    parts = name.removesuffix(REVERSE).split(".")
    return read_v4(".".join(reversed(parts))) or b""
