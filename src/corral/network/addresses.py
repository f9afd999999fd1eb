"""IP addresses as bytes (4 or 16 of them), read and written without `ipaddress` or `socket`.

Only the one plain spelling of IPv4 is read: other programs take octal, hexadecimal and short forms
for addresses, each in its own way, so those are refused instead of guessed.
"""

from __future__ import annotations

from corral.record import record
from corral.units import is_digits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HEX = frozenset("0123456789abcdefABCDEF")
MAPPED = bytes(10) + b"\xff\xff"
LONGEST_TEXT = 45
MOST_DIALLED = 8


@record
class Network:
    """The addresses whose first `bits` bits are those of `address`; the others are zero in it."""

    address: bytes
    bits: int

    def __contains__(self, other: bytes) -> bool:
        if len(other) != len(self.address):
            return False
        free = len(other) * 8 - self.bits
        return int.from_bytes(other, "big") >> free == int.from_bytes(self.address, "big") >> free

    def __str__(self) -> str:
        text = write(self.address)
        return text if self.bits == len(self.address) * 8 else f"{text}/{self.bits}"


def read(text: str) -> bytes:
    """The address that is written there; ValueError if it is none."""
    address = read_v6(text) if ":" in text else read_v4(text)
    if address is None:
        raise ValueError(f"{text[:LONGEST_TEXT]!r} is not an IP address")
    return address


def read_network(text: str) -> Network:
    """An address, or `address/bits` with nothing set beyond its bits."""
    written, slash, length = text.partition("/")
    address = read(written)
    most = len(address) * 8
    if not slash:
        return Network(address=address, bits=most)
    if not is_digits(length) or len(length) > 3 or str(int(length)) != length:
        raise ValueError(f"{length[:4]!r} is not a prefix length")
    bits = int(length)
    if bits > most:
        raise ValueError(f"the prefix length is a number from 0 to {most}")
    if int.from_bytes(address, "big") & ((1 << (most - bits)) - 1):
        raise ValueError("bits are set beyond the prefix length")
    return Network(address=address, bits=bits)


def read_v4(text: str) -> bytes | None:
    parts = text.split(".", 4)
    if len(parts) != 4:
        return None
    for part in parts:
        if not is_digits(part) or len(part) > 3 or int(part) > 255 or str(int(part)) != part:
            return None
    return bytes(map(int, parts))


def read_v6(text: str) -> bytes | None:
    if len(text) > LONGEST_TEXT or text.count("::") > 1 or ":::" in text:
        return None
    head, gap, tail = text.partition("::")
    front = _groups(head, last=not gap)
    back = _groups(tail, last=True) if gap else []
    if front is None or back is None:
        return None
    missing = 8 - len(front) - len(back)
    # "::" stands for at least one group.
    if (missing < 1) if gap else (missing != 0):
        return None
    return b"".join(group.to_bytes(2, "big") for group in (*front, *[0] * missing, *back))


def _groups(text: str, *, last: bool) -> list[int] | None:
    """Groups of hexadecimal digits; the last may be a dotted IPv4 address, which makes two."""
    if not text:
        return []
    found: list[int] = []
    parts = text.split(":")
    for at, part in enumerate(parts):
        if "." in part:
            dotted = read_v4(part) if last and at == len(parts) - 1 else None
            if dotted is None:
                return None
            found += [int.from_bytes(dotted[:2], "big"), int.from_bytes(dotted[2:], "big")]
        elif not 1 <= len(part) <= 4 or not HEX.issuperset(part):
            return None
        else:
            found.append(int(part, 16))
    return found


def write(address: bytes) -> str:
    """The canonical text (RFC 5952); a mapped IPv4 address shows its dots."""
    if len(address) == 4:
        return ".".join(map(str, address))
    if address.startswith(MAPPED):
        return "::ffff:" + write(address[12:])
    groups = [int.from_bytes(address[at : at + 2], "big") for at in range(0, 16, 2)]
    start, length = _longest_zeros(groups)
    if length < 2:
        return ":".join(f"{group:x}" for group in groups)
    front = ":".join(f"{group:x}" for group in groups[:start])
    back = ":".join(f"{group:x}" for group in groups[start + length :])
    return f"{front}::{back}"


def _longest_zeros(groups: list[int]) -> tuple[int, int]:
    best, start = (0, 0), 0
    while start < len(groups):
        end = start
        while end < len(groups) and groups[end] == 0:
            end += 1
        if end - start > best[1]:
            best = (start, end - start)
        start = max(end, start + 1)
    return best


def plain(address: bytes) -> bytes:
    """A mapped IPv4 address as the IPv4 address that the kernel would dial for it."""
    return address[12:] if len(address) == 16 and address.startswith(MAPPED) else address


def any_holds(networks: Iterable[Network], address: bytes, *, bits: int = 0) -> bool:
    """Is it in one of them that is at least `bits` long?"""
    return any(network.bits >= bits and address in network for network in networks)


def interleaved(addresses: Sequence[bytes]) -> list[bytes]:
    """In which they are dialled: the host's order, but no family waits behind all of the other."""
    first = [item for item in addresses if len(item) == len(addresses[0])]
    others = [item for item in addresses if len(item) != len(addresses[0])]
    mixed: list[bytes] = []
    while first or others:
        mixed += [queue.pop(0) for queue in (first, others) if queue]
    return mixed[:MOST_DIALLED]
