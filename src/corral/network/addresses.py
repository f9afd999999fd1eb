"""Parse and format IP addresses as bytes (4 or 16), without `ipaddress` or `socket`.

An IPv4 address must be written as four decimal numbers, because programs do not agree on the
meaning of octal, hexadecimal and short forms.
"""

from __future__ import annotations

from corral.record import record
from corral.units import is_digits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


HEX = frozenset("0123456789abcdefABCDEF")
MAPPED = bytes(10) + b"\xff\xff"
MAX_TEXT_LENGTH = 45
MAX_ADDRESSES = 16
"""The maximum number of addresses that are used for one name. Further addresses are ignored."""


@record
class Network:
    """A network: all addresses whose first `bits` bits are the same as in `address`. The remaining
    bits of `address` are zero.
    """

    address: bytes
    bits: int

    def __contains__(self, other: bytes) -> bool:
        if len(other) != len(self.address):
            return False
        free = len(other) * 8 - self.bits
        return int.from_bytes(other, "big") >> free == int.from_bytes(self.address, "big") >> free

    def __str__(self) -> str:
        text = format_address(self.address)
        return text if self.bits == len(self.address) * 8 else f"{text}/{self.bits}"


def is_in_any(address: bytes, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def parse_address(text: str) -> bytes:
    address = address_or_none(text)
    if address is None:
        raise ValueError("not an IP address (IPv4 is four decimal numbers)")
    return address


def address_or_none(text: str) -> bytes | None:
    return _parse_v6(text) if ":" in text else _parse_v4(text)


def parse_network(text: str) -> Network:
    """Parse `address` or `address/bits`. Raise ValueError if any bit after the first `bits` bits is
    not zero.
    """
    host, slash, length = text.partition("/")
    address = parse_address(host)
    most = len(address) * 8
    if not slash:
        return Network(address=address, bits=most)
    if not is_digits(length) or len(length) > 3 or str(int(length)) != length or int(length) > most:
        raise ValueError(f"the prefix length must be a number from 0 to {most}")
    bits = int(length)
    if int.from_bytes(address, "big") & ((1 << (most - bits)) - 1):
        raise ValueError(f"the address is not zero after its first {bits} bits")
    return Network(address=address, bits=bits)


def _parse_v4(text: str) -> bytes | None:
    parts = text.split(".", 4)
    if len(parts) != 4:
        return None
    for part in parts:
        if not is_digits(part) or len(part) > 3 or int(part) > 255 or str(int(part)) != part:
            return None
    return bytes(map(int, parts))


def _parse_v6(text: str) -> bytes | None:
    if len(text) > MAX_TEXT_LENGTH or text.count("::") > 1 or ":::" in text:
        return None
    head, gap, tail = text.partition("::")
    front = _groups(head, last=not gap)
    back = _groups(tail, last=True) if gap else []
    if front is None or back is None:
        return None
    missing = 8 - len(front) - len(back)
    # "::" replaces at least one group.
    if (missing < 1) if gap else (missing != 0):
        return None
    return b"".join(group.to_bytes(2, "big") for group in (*front, *[0] * missing, *back))


def _groups(text: str, *, last: bool) -> list[int] | None:
    """Parse groups of hexadecimal digits. Return None if they are malformed. If `last` is true, the
    final two groups may be written as a dotted IPv4 address.
    """
    if not text:
        return []
    found: list[int] = []
    parts = text.split(":")
    for at, part in enumerate(parts):
        if "." in part:
            dotted = _parse_v4(part) if last and at == len(parts) - 1 else None
            if dotted is None:
                return None
            found += [int.from_bytes(dotted[:2], "big"), int.from_bytes(dotted[2:], "big")]
        elif not 1 <= len(part) <= 4 or not HEX.issuperset(part):
            return None
        else:
            found.append(int(part, 16))
    return found


def format_address(address: bytes) -> str:
    """Return the canonical text of an address (RFC 5952). An IPv4-mapped address is written as
    `::ffff:` and the dotted IPv4 address.
    """
    if len(address) == 4:
        return ".".join(map(str, address))
    if address.startswith(MAPPED):
        return "::ffff:" + format_address(address[12:])
    groups = [int.from_bytes(address[at : at + 2], "big") for at in range(0, 16, 2)]
    start, length = _longest_zeros(groups)
    if length < 2:
        return ":".join(f"{group:x}" for group in groups)
    front = ":".join(f"{group:x}" for group in groups[:start])
    back = ":".join(f"{group:x}" for group in groups[start + length :])
    return f"{front}::{back}"


def _longest_zeros(groups: list[int]) -> tuple[int, int]:
    best = (0, 0)
    for start in range(len(groups)):
        rest = groups[start:]
        length = next((at for at, group in enumerate(rest) if group), len(rest))
        if length > best[1]:
            best = (start, length)
    return best


def unmap(address: bytes) -> bytes:
    """Return the IPv4 address in an IPv4-mapped IPv6 address, because this is the address that the
    kernel would dial. Return any other address unchanged.
    """
    return address[12:] if len(address) == 16 and address.startswith(MAPPED) else address


def deduplicate(addresses: Sequence[bytes]) -> list[bytes]:
    """Convert IPv4-mapped addresses to IPv4, and return the first MAX_ADDRESSES distinct addresses
    in their original order.
    """
    return list(dict.fromkeys(map(unmap, addresses[: 4 * MAX_ADDRESSES])))[:MAX_ADDRESSES]
