"""Parse the entries of `network.allow` into the allowlist, with one strict grammar.

    entry = host [":" ports] | "[" v6 "]" [":" ports] | "[" v6 "/" bits "]" [":" ports]
    host  = name | "*." name | v4 | v4 "/" bits | v6 | v6 "/" bits
    ports = port | port "-" port

A name consists of labels of letters, digits and hyphens. Text is refused if a resolver or a C
library could read it as a different host (decimal and octal addresses, NUL, trailing dots, other
scripts). An international name must be written in its xn-- form, because different letters may look
alike, and because the two standards for its encoding (IDNA 2003 and 2008) can lead to two different
hosts.

`Rules` is the allowlist. A destination that no entry allows is denied.
"""

from __future__ import annotations

from corral.network.addresses import Network, format_address, is_in_any, parse_network, unmap
from corral.record import record
from corral.safe_text import shown
from corral.units import is_digits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


LABEL = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
HEX = frozenset("0123456789abcdef")
MAX_NAME_LENGTH = 253
MAX_LABEL_LENGTH = 63
MAX_PORT = 65535
DEFAULT_PORTS = ((80, 80), (443, 443))
MAX_PORTS = 64
"""The maximum number of ports in all entries together. There is a limit because each port needs a
listener in the sandbox.
"""
SYNTHETIC = (
    Network(address=bytes((192, 31, 196, 0)), bits=24),
    Network(address=bytes((192, 175, 48, 0)), bits=24),
    Network(address=bytes((198, 18, 0, 0)), bits=15),
)
"""The networks from which the gateway assigns an address to each name, in this order. No entry can
allow an address in these networks.

The first two belong to AS112 (RFC 7534, RFC 7535). Only DNS servers for private addresses use them,
so no server needs them, but Python's `ipaddress` counts them as global. Servers that connect only
to public addresses would refuse the third network, which is reserved for benchmarking.
"""


@record
class AllowEntry:
    """One entry of the allowlist. `host` is in lower case. Each pair in `ports` is a range: its
    first and its last port.
    """

    host: str
    ports: tuple[tuple[int, int], ...] = DEFAULT_PORTS

    def has_port(self, port: int) -> bool:
        return any(low <= port <= high for low, high in self.ports)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.ports == DEFAULT_PORTS:
            return host
        low, high = self.ports[0]
        return f"{host}:{low}" if low == high else f"{host}:{low}-{high}"


@record
class Rules:
    """The allowlist. `under` contains the wildcard entries, keyed by the name without its `*.`."""

    names: Mapping[str, tuple[AllowEntry, ...]]
    under: Mapping[str, tuple[AllowEntry, ...]]
    networks: tuple[tuple[Network, AllowEntry], ...]
    ports: frozenset[int]

    def matches(self, name: str) -> tuple[AllowEntry, ...]:
        """Return all entries for this name, whatever their ports. Wildcard entries come last."""
        # Check for ASCII before calling `lower`, because `lower` turns some other letters into
        # ASCII letters, for example the Kelvin sign into k.
        name = name.lower() if name.isascii() else ""
        if not is_host_name(name):
            return ()
        found = self.names.get(name, ())
        at = name.find(".")
        while at >= 0:
            found += self.under.get(name[at + 1 :], ())
            at = name.find(".", at + 1)
        return found

    def allows_name(self, name: str, port: int) -> AllowEntry | None:
        return next((item for item in self.matches(name) if item.has_port(port)), None)

    def allows_address(self, address: bytes, port: int) -> AllowEntry | None:
        """Return an entry that allows this address and port, or None. No entry allows an address in
        SYNTHETIC, because the gateway assigns these addresses to names.
        """
        address = unmap(address)
        for network, item in self.networks:
            if address in network and item.has_port(port) and not is_in_any(address, SYNTHETIC):
                return item
        return None

    def named_networks(self, port: int) -> tuple[Network, ...]:
        """Return the networks that the policy names for this port. The address guard admits their
        addresses.
        """
        return tuple(network for network, item in self.networks if item.has_port(port))


def parse_rules(texts: Iterable[str]) -> Rules:
    """Parse entries of `network.allow`. Raise ValueError if an entry is invalid."""
    items = tuple(dict.fromkeys(map(parse_entry, texts)))
    names: dict[str, tuple[AllowEntry, ...]] = {}
    under: dict[str, tuple[AllowEntry, ...]] = {}
    networks: list[tuple[Network, AllowEntry]] = []
    for item in items:
        if item.host.startswith("*."):
            under[item.host[2:]] = (*under.get(item.host[2:], ()), item)
        elif is_host_name(item.host):
            names[item.host] = (*names.get(item.host, ()), item)
        else:
            networks.append((_parse_unmapped(item.host), item))
    ports = collect_ports(map(str, items), max_ports=MAX_PORTS)
    if len(ports) > MAX_PORTS:
        raise ValueError(f"all entries together have more than {MAX_PORTS} ports")
    return Rules(names=names, under=under, networks=tuple(networks), ports=ports)


def _parse_unmapped(host: str) -> Network:
    """Parse a network. If all its addresses are IPv4 addresses mapped to IPv6, return the IPv4
    network.
    """
    network = parse_network(host)
    address = unmap(network.address)
    if len(address) == len(network.address) or network.bits < 96:
        return network
    return Network(address=address, bits=network.bits - 96)


def is_host_name(name: str) -> bool:
    """Return whether `parse_entry` accepts `name` as a host name. `name` must be in lower case."""
    if len(name) > MAX_NAME_LENGTH or not name.isascii() or _looks_like_v4(name):
        return False
    try:
        for label in name.split("."):
            _check_label(label, name)
    except ValueError:
        return False
    return True


def format_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_entry(text: str) -> AllowEntry:
    """Parse an entry of `network.allow`. `str` of the result is the entry's canonical spelling."""
    if not text:
        raise ValueError("the destination is empty")
    if not text.isascii():
        raise ValueError(f"{shown(text)}: write an international name in its xn-- form")
    if not text.isprintable() or " " in text:
        raise ValueError(f"{shown(text)} has white space or control characters")
    if named := _find_host_of_url(text.lower()):
        raise ValueError(f"{shown(text)} is not a host: write {named}")
    if "//" in text or "@" in text:
        raise ValueError(
            f"{shown(text)} is not a host: leave out the scheme (https://) and the user name (me@)"
        )
    host, ports = _split_ports(text.lower())
    return AllowEntry(
        host=_parse_host(host, text), ports=DEFAULT_PORTS if ports is None else _parse_ports(ports)
    )


def describe_entry(text: str) -> str:
    """Return an entry as text. Add the default ports if it names none."""
    item = parse_entry(text)
    if item.ports != DEFAULT_PORTS:
        return str(item)
    return f"{item} on ports {' and '.join(str(low) for low, _ in item.ports)}"


def _find_host_of_url(text: str) -> str:
    """Return the host and port of a URL, with or without a scheme. Return "" if the text is not a
    URL, or if its host is not a name.
    """
    named = text.split("//", 1)[-1].partition("/")[0].rpartition("@")[2]
    host, *more = named.split(":")  # more than one colon means a network, such as fd00::/8
    return named if named != text and len(more) < 2 and is_host_name(host) else ""


def _split_ports(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise ValueError(f"{shown(text)}: write an IPv6 address with a port as [::1]:443")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        return text, None
    host, colon, ports = text.partition(":")
    return host, ports if colon else None


def _parse_ports(text: str) -> tuple[tuple[int, int], ...]:
    low, dash, high = text.partition("-")
    first = _parse_port(low)
    last = _parse_port(high) if dash else first
    if last < first:
        raise ValueError(f"the first port of {shown(text)} is higher than the last")
    return ((first, last),)


def _parse_port(text: str) -> int:
    if not is_digits(text) or len(text) > 5 or text[0] == "0" or int(text) > MAX_PORT:
        raise ValueError(f"{shown(text)} is not a port (1 to {MAX_PORT})")
    return int(text)


def _parse_host(host: str, text: str) -> str:
    """Return the canonical spelling of a host. `text` is the whole entry, which errors quote."""
    if ":" in host or "/" in host or _looks_like_v4(host):
        try:
            network = parse_network(host)
        except ValueError as error:
            raise ValueError(f"{shown(text)}: {error}") from None
        address = format_address(network.address)
        return f"{address}/{network.bits}" if "/" in host else address
    name = host.removeprefix("*.")
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"{shown(text)} is longer than {MAX_NAME_LENGTH} characters")
    for label in name.split("."):
        _check_label(label, text)
    if name != host and "." not in name:
        raise ValueError(f"{shown(text)} would allow a whole top-level domain")
    return host


def _check_label(label: str, text: str) -> None:
    if not label:
        raise ValueError(f"{shown(text)} has an empty label (one dot too many)")
    if len(label) > MAX_LABEL_LENGTH:
        raise ValueError(f"{shown(text)} has a label longer than {MAX_LABEL_LENGTH} characters")
    if "*" in label:
        raise ValueError(f"{shown(text)}: write a wildcard only at the start, as in *.NAME")
    if not LABEL.issuperset(label) or label[0] == "-" or label[-1] == "-":
        raise ValueError(f"{shown(text)} is not a host name")


def _looks_like_v4(host: str) -> bool:
    """Return whether a resolver could read this host as an IPv4 address in decimal, octal,
    hexadecimal or short form.
    """
    last = host.rpartition(".")[2]
    return is_digits(last) or (last.startswith("0x") and HEX.issuperset(last[2:]))


def collect_ports(entries: Iterable[str], *, max_ports: int) -> frozenset[int]:
    """Return the ports of these entries. If the entries have more than `max_ports` ports, the
    result may be incomplete, but still has more than `max_ports` ports.
    """
    found: set[int] = set()
    for text in entries:
        for low, high in parse_entry(text).ports:
            found.update(range(low, min(high, low + max_ports) + 1))
        if len(found) > max_ports:
            break
    return frozenset(found)
