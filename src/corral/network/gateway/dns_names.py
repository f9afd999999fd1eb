"""What the target is told about names. No lookup of the target's ever leaves the host by itself.

An allowed name has an address of its own in 198.18.0.0/15, the same for the whole run and never
another name's: a connection to that address is a connection to that name. It has no AAAA record and
no others: an empty answer makes every client take the A record at once. A name that is not allowed
does not exist (REFUSED would make musl's resolver wait and ask again), and that is recorded.
"""

from __future__ import annotations

from corral.network.gateway import dns_messages
from corral.network.rules import SYNTHETIC, is_host_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.denials.records import Denials
    from corral.network.addresses import Network
    from corral.network.rules import Rules

MOST_NAMES = 4096
REVERSE = ".in-addr.arpa"
LOOPBACK = {dns_messages.A: bytes((127, 0, 0, 1)), dns_messages.AAAA: bytes(15) + b"\x01"}


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
            query = dns_messages.parse_query(data)
        except dns_messages.MalformedError as error:
            return dns_messages.build_complaint(data, error.code)
        if query.flags & dns_messages.RESPONSE:
            return None
        if query.edns:
            return dns_messages.build_answer(query, dns_messages.BADVERS)
        return self._answer(query)

    def _answer(self, query: dns_messages.Query) -> bytes:
        if self.rules.matches(query.name):
            return self._allowed(query)
        # The sandbox's own loopback (RFC 6761): nothing of the host is meant.
        if query.name == "localhost" or query.name.endswith(".localhost"):
            own = LOOPBACK.get(query.kind)
            found = () if own is None else (dns_messages.Answer(kind=query.kind, data=own),)
            return dns_messages.build_answer(query, dns_messages.NOERROR, found)
        if query.kind == dns_messages.PTR and query.name.endswith(REVERSE):
            name = self._names.get(_reversed(query.name))
            if name is not None:
                pointer = dns_messages.Answer(
                    kind=dns_messages.PTR, data=dns_messages.build_name(name)
                )
                return dns_messages.build_answer(query, dns_messages.NOERROR, (pointer,))
        allow = query.name if is_host_name(query.name) else ""
        self.denials.add("name", query.name or ".", allow=allow)
        return dns_messages.build_answer(query, dns_messages.NXDOMAIN)

    def _allowed(self, query: dns_messages.Query) -> bytes:
        if query.kind not in {dns_messages.A, dns_messages.ANY}:
            return dns_messages.build_answer(query, dns_messages.NOERROR)
        address = self.address_of(query.name)
        if address is None:
            self.denials.add("limit", f"more than {self.most} names", allow="")
            return dns_messages.build_answer(query, dns_messages.SERVFAIL)
        return dns_messages.build_answer(
            query, dns_messages.NOERROR, (dns_messages.Answer(kind=dns_messages.A, data=address),)
        )


def _reversed(name: str) -> bytes:
    """4.3.2.1.in-addr.arpa -> 1.2.3.4; nothing if it is not that."""
    from corral.network.addresses import read_v4

    parts = name.removesuffix(REVERSE).split(".")
    return read_v4(".".join(reversed(parts))) or b""
