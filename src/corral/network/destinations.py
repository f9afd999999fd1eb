"""Check whether a target may connect to a destination, for both network engines.

The gateway (Linux) and the HTTP proxies (macOS, Windows) dial only the addresses that
`DestinationCheck` returns, or the host's own proxy. Both call these methods at the same points:

    allows              first: whether an entry allows the host (name or address) and the port
    allows_hello        after a TLS client has named a server: whether an entry allows that name
    proxy_for           before the lookup: the host's own proxy, if the host uses one for this name
    filter_addresses    after the lookup: the addresses that the address guard allows

Each denial is recorded together with the entry of `network.allow` that would allow the destination,
if there can be such an entry.
"""

from __future__ import annotations

from corral.denials.records import Denials, allow_net
from corral.network.addresses import Network, format_address, is_in_any, parse_network, unmap
from corral.network.guard import HostAddresses, find_refusal, is_admissible
from corral.network.host_proxy import Proxy, proxy_from_environment
from corral.network.rules import SYNTHETIC, Rules, format_host_port, is_host_name, parse_rules
from corral.network.tls_hello import Hello
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence


TLS_PORTS = frozenset({443})
NO_ADDRESS = "the host found no address for it"
NO_CONNECTION = "no connection"
NO_PROXY = "no connection to the host's own proxy"


@record
class Destination:
    """A host and a port. `host` is a name, or the text of `address` if `address` is set."""

    host: str
    port: int
    address: bytes | None = None

    def __str__(self) -> str:
        return format_host_port(self.host, self.port)


def address_destination(address: bytes, port: int) -> Destination:
    """Return the destination for an address. A mapped IPv4 address and the IPv4 address itself are
    the same destination.
    """
    plain = unmap(address)
    return Destination(host=format_address(plain), port=port, address=plain)


class DestinationCheck:
    """Decides which destinations a target may reach, and records denials.

    `admitted` are networks from the user's config, and allowed names may resolve to addresses in
    them. `host_addresses` are the host's own addresses. They are refused, unless the policy or the
    config names the exact address or, for loopback, its network. `synthetic` are the networks
    from which the gateway assigns an address to each name.
    """

    def __init__(
        self,
        rules: Rules,
        denials: Denials,
        *,
        admitted: Iterable[Network] = (),
        host_addresses: Container[bytes] | None = None,
        proxy: Proxy | None = None,
        tls_ports: frozenset[int] = TLS_PORTS,
        synthetic: tuple[Network, ...] = SYNTHETIC,
    ) -> None:
        self.rules = rules
        self.denials = denials
        self.synthetic = synthetic
        self._admitted = tuple(admitted)
        self._host_addresses = HostAddresses() if host_addresses is None else host_addresses
        self._proxy = proxy
        self._tls_ports = tls_ports

    def allows(self, destination: Destination) -> bool:
        """Return whether the policy allows a destination. If it does not, record the denial."""
        host, port, address = destination.host, destination.port, destination.address
        if address is not None:
            if self.rules.allows_address(address, port) is not None:
                return True
            why = "no name has this address" if is_in_any(address, self.synthetic) else ""
            allow = allow_net(self.remedy(destination))
            self.denials.add("address", str(destination), allow=allow, why=why)
        else:
            if self.rules.allows_name(host, port) is not None:
                return True
            wanted = str(destination)
            matches = self.rules.matches(host)
            self.denials.add("port" if matches else "name", wanted, allow=allow_net(wanted))
        return False

    def remedy(self, destination: Destination) -> str:
        """Return the entry of `network.allow` that would allow a destination, or "" if no entry can
        allow it.
        """
        address = destination.address
        if address is not None and (
            is_in_any(address, self.synthetic) or not is_admissible(address)
        ):
            return ""
        return str(destination)

    def needs_hello(self, destination: Destination) -> bool:
        """Return whether the destination's port is for TLS. If it is, the client has to send a TLS
        hello before corral connects to the server.
        """
        return destination.port in self._tls_ports

    def allows_hello(self, hello: Hello, destination: Destination) -> bool | None:
        """Return whether a client with this hello is allowed, or None while the hello is
        incomplete.

        Record a denial if the hello is malformed or names a server that is not allowed. A client
        that does not use TLS, or whose hello names no server, is allowed, because its connection
        can only go to the allowed host.
        """
        port = destination.port
        if hello.state == "incomplete":
            return None
        if hello.state == "malformed":
            wanted = "something that cannot be read"
        elif hello.state == "name" and self.rules.allows_name(hello.name, port) is None:
            wanted = hello.name
        else:
            return True
        allow = format_host_port(wanted, port) if is_host_name(wanted) else ""
        why = f"connected to {destination.host}"
        self.denials.add("sni", wanted, allow=allow_net(allow), why=why)
        return False

    def proxy_for(self, destination: Destination) -> Proxy | None:
        """Return the host's own proxy, or None if the host would not use a proxy for this
        destination.
        """
        proxy = self._proxy
        return proxy if proxy is not None and proxy.is_used_for(destination.host) else None

    def filter_addresses(
        self, destination: Destination, found: Sequence[bytes]
    ) -> tuple[bytes, ...]:
        """Return the addresses in `found` that may be dialled, and record the others as denials. If
        `found` is empty, record that the destination is unreachable.
        """
        if not found:
            self.report_unreachable(destination, NO_ADDRESS)
        admitted = (*self.rules.named_networks(destination.port), *self._admitted)
        good: list[bytes] = []
        for address in map(unmap, found):
            refusal = find_refusal(address, host_addresses=self._host_addresses, admitted=admitted)
            if refusal is None:
                good.append(address)
                continue
            text = format_host_port(format_address(address), destination.port)
            named = text if destination.address is not None else f"{destination.host} ({text})"
            allow = ""
            if refusal.remedy is not None:
                allow = format_host_port(format_address(refusal.remedy), destination.port)
            self.denials.add("guard", named, allow=allow_net(allow), why=refusal.why)
        return tuple(good)

    def report_unreachable(self, destination: Destination, why: str) -> None:
        """Record that an allowed destination could not be reached from the host."""
        self.denials.add("unreachable", str(destination), why=why)


def check_from_policy(
    allow: Iterable[str], admit: Iterable[str], environment: Mapping[str, str], denials: Denials
) -> DestinationCheck:
    """Build the check for one run. `environment` contains the user's variables, which may name a
    proxy.
    """
    return DestinationCheck(
        parse_rules(allow),
        denials,
        admitted=map(parse_network, admit),
        proxy=proxy_from_environment(environment),
    )
