"""Answers the target's DNS queries. No query of the target ever leaves the host.

An allowed name has an address of its own in 198.18.0.0/15, the same for the whole run and never
another name's: a connection to that address is a connection to that name. It has no AAAA record and
no others: an empty answer makes every client take the A record at once. A name that is not allowed
does not exist (REFUSED would make musl's resolver wait and ask again), and the denial is recorded.
"""

from __future__ import annotations

from corral.network.addresses import address_or_none
from corral.network.destinations import Destination, DestinationCheck, address_destination
from corral.network.gateway import dns_messages
from corral.network.rules import is_host_name

MAX_NAMES = 4096
REVERSE = ".in-addr.arpa"
LOOPBACK = {dns_messages.A: bytes((127, 0, 0, 1)), dns_messages.AAAA: bytes(15) + b"\x01"}


class Names:
    """Names and their synthetic addresses, assigned once each."""

    def __init__(self, check: DestinationCheck, *, max_names: int = MAX_NAMES) -> None:
        self.check = check
        self._max_names = max_names
        self._addresses: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}

    def destination(self, address: bytes, port: int) -> Destination:
        """Return what a connection to this address means: a name, if the address is synthetic."""
        name = self._names.get(address)
        if name is None:
            return address_destination(address, port)
        return Destination(host=name, port=port)

    def assign_address(self, name: str) -> bytes | None:
        """Return the address of an allowed name, a new one if need be; None if none is left."""
        found = self._addresses.get(name)
        if found is None and len(self._names) < self._max_names:
            first = int.from_bytes(self.check.synthetic.address, "big")
            found = (first + len(self._names) + 1).to_bytes(4, "big")
            self._addresses[name] = found
            self._names[found] = name
        return found

    def respond(self, data: bytes) -> bytes | None:
        """Return the answer to any message; None if it gets no answer."""
        try:
            query = dns_messages.parse_query(data)
        except dns_messages.MalformedError as error:
            return dns_messages.build_error(data, error.code)
        if query.flags & dns_messages.RESPONSE:
            return None
        if query.edns:
            return dns_messages.build_answer(query, dns_messages.BADVERS)
        return self._answer(query)

    def _answer(self, query: dns_messages.Query) -> bytes:
        if self.check.rules.matches(query.name):
            return self._answer_allowed(query)
        # RFC 6761: the sandbox's own loopback, not the host's.
        if query.name == "localhost" or query.name.endswith(".localhost"):
            own = LOOPBACK.get(query.kind)
            found = () if own is None else (dns_messages.Answer(kind=query.kind, data=own),)
            return dns_messages.build_answer(query, dns_messages.NOERROR, found)
        if query.kind == dns_messages.PTR and query.name.endswith(REVERSE):
            name = self._names.get(_reverse_name_to_address(query.name))
            if name is not None:
                pointer = dns_messages.Answer(
                    kind=dns_messages.PTR, data=dns_messages.build_name(name)
                )
                return dns_messages.build_answer(query, dns_messages.NOERROR, (pointer,))
        allow = query.name if is_host_name(query.name) else ""
        self.check.denials.add("name", query.name or ".", allow=allow)
        return dns_messages.build_answer(query, dns_messages.NXDOMAIN)

    def _answer_allowed(self, query: dns_messages.Query) -> bytes:
        if query.kind not in {dns_messages.A, dns_messages.ANY}:
            return dns_messages.build_answer(query, dns_messages.NOERROR)
        address = self.assign_address(query.name)
        if address is None:
            self.check.denials.add("limit", f"more than {self._max_names} names")
            return dns_messages.build_answer(query, dns_messages.SERVFAIL)
        return dns_messages.build_answer(
            query, dns_messages.NOERROR, (dns_messages.Answer(kind=dns_messages.A, data=address),)
        )


def _reverse_name_to_address(name: str) -> bytes:
    """Parse 4.3.2.1.in-addr.arpa as 1.2.3.4; nothing if it is not that."""
    parts = name.removesuffix(REVERSE).split(".")
    return address_or_none(".".join(reversed(parts))) or b""
