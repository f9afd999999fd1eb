"""What may stand in `network.allow`: one strict grammar for destinations.

    destination = host [":" ports] | "[" v6 "]" [":" ports] | "[" v6 "/" bits "]" [":" ports]
    host        = name | "*." name | v4 | v4 "/" bits | v6 | v6 "/" bits
    ports       = port | port "-" port

A name is made of letter-digit-hyphen labels, so anything that a resolver or a C library could read
as another host (decimal and octal addresses, NUL, trailing dots, other scripts) is refused. An
international name is written in its xn-- form: there are two standards for making it (IDNA 2003 and
2008) which lead to different hosts, and what looks like one letter may be another.

`Rules` is the allowlist itself: what is not in it is not allowed, so an empty one allows nothing.
"""

from __future__ import annotations

from corral.network.addresses import Network, plain, read_network, read_v6, write
from corral.record import record
from corral.safe_text import shown
from corral.units import is_digits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
LABEL = LETTERS | frozenset("0123456789-")
HEX = frozenset("0123456789abcdef")
LONGEST_NAME = 253
LONGEST_LABEL = 63
LAST_PORT = 65535
# A host without a port is a web server: nothing else is guessed.
DEFAULT_PORTS = ((80, 80), (443, 443))
# Each is a listener in the sandbox.
MOST_PORTS = 64
SYNTHETIC = Network(address=bytes((198, 18, 0, 0)), bits=15)
"""Where the gateway's own addresses for names are: none of them can be allowed as an address."""


@record
class Destination:
    """`host` is in lower case, a network has its prefix length; `ports` are inclusive ranges."""

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
    """The allowlist. `under` holds the wildcards by the name that follows their `*.`."""

    names: Mapping[str, tuple[Destination, ...]]
    under: Mapping[str, tuple[Destination, ...]]
    networks: tuple[tuple[Network, Destination], ...]
    ports: frozenset[int]

    def matches(self, name: str) -> tuple[Destination, ...]:
        """Everything that allows something at this name, the name itself before its wildcards."""
        # Lower case can be a letter of another script in disguise: the Kelvin sign's is a plain k.
        name = name.lower() if name.isascii() else ""
        if not is_host_name(name):
            return ()
        found = self.names.get(name, ())
        at = name.find(".")
        while at >= 0:
            found += self.under.get(name[at + 1 :], ())
            at = name.find(".", at + 1)
        return found

    def allows_name(self, name: str, port: int) -> Destination | None:
        return next((item for item in self.matches(name) if item.has_port(port)), None)

    def allows_address(self, address: bytes, port: int) -> Destination | None:
        """Does an entry hold this very address? Names never do: they have synthetic addresses."""
        address = plain(address)
        for network, item in self.networks:
            if address in network and item.has_port(port) and address not in SYNTHETIC:
                return item
        return None

    def named_networks(self, port: int) -> tuple[Network, ...]:
        """The networks that the policy itself names for a port: the address guard admits them."""
        return tuple(network for network, item in self.networks if item.has_port(port))


def rules_of(texts: Iterable[str]) -> Rules:
    """The allowlist from entries of `network.allow`; ValueError if one is wrong."""
    items = tuple(dict.fromkeys(map(parse_destination, texts)))
    names: dict[str, tuple[Destination, ...]] = {}
    under: dict[str, tuple[Destination, ...]] = {}
    networks: list[tuple[Network, Destination]] = []
    for item in items:
        if item.host.startswith("*."):
            under[item.host[2:]] = (*under.get(item.host[2:], ()), item)
        elif is_host_name(item.host):
            names[item.host] = (*names.get(item.host, ()), item)
        else:
            networks.append((_network(item.host), item))
    ports = ports_of(map(str, items), most=MOST_PORTS)
    if len(ports) > MOST_PORTS:
        raise ValueError(f"more than {MOST_PORTS} ports in all")
    return Rules(names=names, under=under, networks=tuple(networks), ports=ports)


def _network(host: str) -> Network:
    """A network of mapped addresses is the network of IPv4 addresses that is meant."""
    network = read_network(host)
    address = plain(network.address)
    if len(address) == len(network.address) or network.bits < 96:
        return network
    return Network(address=address, bits=network.bits - 96)


def is_host_name(name: str) -> bool:
    """In lower case, as `parse_destination` takes it: nothing that is an address to anybody."""
    if len(name) > LONGEST_NAME or not name.isascii() or looks_like_v4(name):
        return False
    try:
        for label in name.split("."):
            check_label(label, name)
    except ValueError:
        return False
    return True


def written(host: str, port: int) -> str:
    """As an entry of `network.allow`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_destination(text: str) -> str | None:
    """What is wrong with an entry of `network.allow`, or None."""
    try:
        parse_destination(text)
    except ValueError as error:
        return str(error)
    return None


def normalise(text: str) -> str:
    """The same destination in one spelling, so that equal ones are equal strings."""
    return str(parse_destination(text))


def parse_destination(text: str) -> Destination:
    if not text:
        raise ValueError("an empty destination")
    if not text.isascii():
        raise ValueError(f"{shown(text)}: write an international name in its xn-- form")
    if not text.isprintable() or " " in text:
        raise ValueError(f"{shown(text)} has white space or control characters")
    if "//" in text or "@" in text:
        raise ValueError(f"{shown(text)} is not a host: leave out the scheme and the user")
    host, ports = split_ports(text.lower())
    return Destination(
        host=check_host(host, text), ports=DEFAULT_PORTS if ports is None else parse_ports(ports)
    )


def split_ports(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise ValueError(f"{shown(text)}: an IPv6 address with a port is written [::1]:443")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        return text, None
    host, colon, ports = text.partition(":")
    return host, ports if colon else None


def parse_ports(text: str) -> tuple[tuple[int, int], ...]:
    low, dash, high = text.partition("-")
    first = parse_port(low)
    last = parse_port(high) if dash else first
    if last < first:
        raise ValueError(f"the port range {shown(text)} runs backwards")
    return ((first, last),)


def parse_port(text: str) -> int:
    if not is_digits(text) or len(text) > 5 or text[0] == "0" or int(text) > LAST_PORT:
        raise ValueError(f"{shown(text)} is not a port (1 to {LAST_PORT})")
    return int(text)


def check_host(host: str, written: str) -> str:
    if ":" in host:
        return check_v6(host, written)
    address, slash, bits = host.partition("/")
    if slash or looks_like_v4(address):
        return check_v4(address, bits if slash else None, written)
    name = host.removeprefix("*.")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"{shown(written)} is longer than {LONGEST_NAME} characters")
    for label in name.split("."):
        check_label(label, written)
    if name != host and "." not in name:
        raise ValueError(f"{shown(written)} would allow a whole top-level domain")
    return host


def check_label(label: str, written: str) -> None:
    if not label:
        raise ValueError(f"{shown(written)} has an empty label (a dot too many)")
    if len(label) > LONGEST_LABEL:
        raise ValueError(f"{shown(written)} has a label longer than {LONGEST_LABEL} characters")
    if "*" in label:
        raise ValueError(f"{shown(written)}: a wildcard is only possible as a leading *.")
    if not LABEL.issuperset(label) or label[0] == "-" or label[-1] == "-":
        raise ValueError(f"{shown(written)} is not a host name")


def looks_like_v4(host: str) -> bool:
    """Would some resolver read it as a number? They take decimal, octal, hex and missing parts."""
    last = host.rpartition(".")[2]
    return is_digits(last) or (last.startswith("0x") and HEX.issuperset(last[2:]))


def check_v4(address: str, bits: str | None, written: str) -> str:
    parts = address.split(".")
    plain = all(
        is_digits(part) and len(part) <= 3 and int(part) <= 255 and str(int(part)) == part
        for part in parts
    )
    if len(parts) != 4 or not plain:
        raise ValueError(f"{shown(written)} is not an IPv4 address (four decimal numbers)")
    if bits is None:
        return address
    length = parse_bits(bits, 32, written)
    number = int.from_bytes(bytes(int(part) for part in parts), "big")
    refuse_host_bits(number, 32 - length, written)
    return f"{address}/{length}"


def check_v6(host: str, written: str) -> str:
    address, slash, bits = host.partition("/")
    number = read_v6(address)
    if number is None:
        raise ValueError(f"{shown(written)} is not an IPv6 address")
    if not slash:
        return write(number)
    length = parse_bits(bits, 128, written)
    refuse_host_bits(int.from_bytes(number, "big"), 128 - length, written)
    return f"{write(number)}/{length}"


def parse_bits(text: str, most: int, written: str) -> int:
    if not is_digits(text) or len(text) > 3 or str(int(text)) != text or int(text) > most:
        raise ValueError(f"{shown(written)}: the prefix length is a number from 0 to {most}")
    return int(text)


def refuse_host_bits(number: int, free: int, written: str) -> None:
    if number & ((1 << free) - 1):
        raise ValueError(f"{shown(written)} has bits set beyond its prefix length")


def ports_of(destinations: Iterable[str], *, most: int) -> frozenset[int]:
    """The ports that these destinations name; it stops counting soon after `most`."""
    found: set[int] = set()
    for text in destinations:
        for low, high in parse_destination(text).ports:
            found.update(range(low, min(high, low + most) + 1))
        if len(found) > most:
            break
    return frozenset(found)
