"""What may stand in `network.allow`: one strict grammar for destinations.

    destination = host [":" ports] | "[" v6 "]" [":" ports] | "[" v6 "/" bits "]" [":" ports]
    host        = name | "*." name | v4 | v4 "/" bits | v6 | v6 "/" bits
    ports       = port | port "-" port

A name is made of letter-digit-hyphen labels, so anything that a resolver or a C library could read
as another host (decimal and octal addresses, NUL, trailing dots, other scripts) is refused.
"""

from __future__ import annotations

from corral.record import record
from corral.units import is_digits, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
LABEL = LETTERS | frozenset("0123456789-")
HEX = frozenset("0123456789abcdef")
LONGEST_NAME = 253
LONGEST_LABEL = 63
LAST_PORT = 65535
# A host without a port is a web server: nothing else is guessed.
DEFAULT_PORTS = ((80, 80), (443, 443))


@record
class Destination:
    """`host` is in lower case, a network has its prefix length; `ports` are inclusive ranges."""

    host: str
    ports: tuple[tuple[int, int], ...] = DEFAULT_PORTS


def check_destination(text: str) -> str | None:
    """What is wrong with an entry of `network.allow`, or None."""
    try:
        parse_destination(text)
    except ValueError as error:
        return str(error)
    return None


def normalise(text: str) -> str:
    """The same destination in one spelling, so that equal ones are equal strings."""
    item = parse_destination(text)
    host = f"[{item.host}]" if ":" in item.host else item.host
    if item.ports == DEFAULT_PORTS:
        return host
    low, high = item.ports[0]
    return f"{host}:{low}" if low == high else f"{host}:{low}-{high}"


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
    from ipaddress import IPv6Address

    address, slash, bits = host.partition("/")
    try:
        # The module would take a scope ("%eth0"), which means nothing to the gateway.
        number = IPv6Address("%" if "%" in address else address)
    except ValueError:
        raise ValueError(f"{shown(written)} is not an IPv6 address") from None
    if not slash:
        return str(number)
    length = parse_bits(bits, 128, written)
    refuse_host_bits(int(number), 128 - length, written)
    return f"{number}/{length}"


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
