"""Answer the target's DNS queries, so that none of them leaves the host.

Each allowed name gets its own address in SYNTHETIC for the whole run, so a connection to that
address is a connection to that name. A name has only an A record. A query for another type gets an
empty answer, so that the client uses the A record at once.

A name that is not allowed gets the answer "no such name" (NXDOMAIN), and the denial is recorded.
The answer is not REFUSED, because the resolver of musl (the C library of Alpine Linux) would then
wait and ask again.
"""

from __future__ import annotations

from itertools import chain

from corral.denials.records import allow_net
from corral.network.addresses import Network, address_or_none
from corral.network.destinations import Destination, DestinationCheck, address_destination
from corral.network.gateway import dns_messages as dns
from corral.network.rules import is_host_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_NAMES = 4096
REVERSE = ".in-addr.arpa"
LOOPBACK = {dns.A: bytes((127, 0, 0, 1)), dns.AAAA: bytes(15) + b"\x01"}


class Names:
    """Answers queries, and gives each allowed name a synthetic address for the whole run."""

    def __init__(self, check: DestinationCheck, *, max_names: int = MAX_NAMES) -> None:
        self.check = check
        self._max_names = max_names
        self._addresses: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._unassigned = chain.from_iterable(map(_host_addresses, check.synthetic))

    def destination(self, address: bytes, port: int) -> Destination:
        """Return the destination of a connection to an address: the name to which the address was
        assigned, or else the address itself.
        """
        name = self._names.get(address)
        if name is None:
            return address_destination(address, port)
        return Destination(host=name, port=port)

    def assign_address(self, name: str) -> bytes | None:
        """Return the synthetic address of an allowed name, and assign one if it has none. Return
        None instead if `max_names` names already have an address.
        """
        found = self._addresses.get(name)
        if found is None and len(self._names) < self._max_names:
            found = next(self._unassigned)
            self._addresses[name] = found
            self._names[found] = name
        return found

    def respond(self, data: bytes) -> bytes | None:
        """Return the answer to a message, or None if the message must not be answered."""
        try:
            query = dns.parse_query(data)
        except dns.MalformedError as error:
            return dns.build_error(data, error.code)
        if query.flags & dns.RESPONSE:
            return None
        if query.edns:
            return dns.build_answer(query, dns.BADVERS)
        return self._answer(query)

    def _answer(self, query: dns.Query) -> bytes:
        if self.check.rules.matches(query.name):
            return self._answer_allowed(query)
        # By RFC 6761, localhost means loopback. This is the loopback of the sandbox, not of the
        # host.
        if query.name == "localhost" or query.name.endswith(".localhost"):
            own = LOOPBACK.get(query.kind)
            found = () if own is None else (dns.Answer(kind=query.kind, data=own),)
            return dns.build_answer(query, dns.NOERROR, found)
        if query.kind == dns.PTR and query.name.endswith(REVERSE):
            name = self._names.get(_reverse_name_to_address(query.name))
            if name is not None:
                pointer = dns.Answer(kind=dns.PTR, data=dns.build_name(name))
                return dns.build_answer(query, dns.NOERROR, (pointer,))
        allow = query.name if is_host_name(query.name) else ""
        self.check.denials.add("name", query.name or ".", allow=allow_net(allow))
        return dns.build_answer(query, dns.NXDOMAIN)

    def _answer_allowed(self, query: dns.Query) -> bytes:
        if query.kind not in {dns.A, dns.ANY}:
            return dns.build_answer(query, dns.NOERROR)
        address = self.assign_address(query.name)
        if address is None:
            self.check.denials.add("limit", f"more than {self._max_names} names")
            return dns.build_answer(query, dns.SERVFAIL)
        return dns.build_answer(query, dns.NOERROR, (dns.Answer(kind=dns.A, data=address),))


def _host_addresses(network: Network) -> Iterator[bytes]:
    """Yield the addresses of an IPv4 network, without its first and its last address."""
    first = int.from_bytes(network.address, "big")
    last = first + (1 << 32 - network.bits) - 1
    return (number.to_bytes(4, "big") for number in range(first + 1, last))


def _reverse_name_to_address(name: str) -> bytes:
    """Parse 4.3.2.1.in-addr.arpa as the address 1.2.3.4. Return b"" if the name contains no
    address.
    """
    parts = name.removesuffix(REVERSE).split(".")
    return address_or_none(".".join(reversed(parts))) or b""
