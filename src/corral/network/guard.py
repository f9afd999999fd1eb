"""The address guard: which addresses the gateway never dials, whatever name led there.

A name is in the hands of whoever runs its zone, so an allowed name may point at the host itself,
at its neighbours or at a cloud's metadata service. The table is our own: `ipaddress` calls
::127.0.0.1, 64:ff9b:1::a00:1, 2002:7f00:1:: and fec0::1 global. An address that carries an IPv4
address is refused for its own sake or for what it carries.

A network that the policy or the user's config names admits what it lies within: 10.0.0.0/8 and
10.1.2.3 admit private addresses, 0.0.0.0/0 means the internet and admits none of these.
"""

from __future__ import annotations

import _socket
import errno

from corral.network.addresses import Network, any_holds, read, read_network, write
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator


@record
class Row:
    """The longest row that holds an address decides. An empty `why` leaves it to what is inside."""

    network: Network
    why: str
    admissible: bool = True


# IANA's special-purpose registries, the multicast and reserved blocks, and the metadata services.
TABLE = (
    ("0.0.0.0/8", "unspecified"),  # the kernel dials loopback for it
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by a carrier (CGNAT)"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved for protocols"),
    ("192.0.2.0/24", "documentation"),
    ("192.88.99.0/24", "a 6to4 relay"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "benchmarking, and the gateway's own"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("255.255.255.255", "broadcast"),
    ("100.100.100.200", "metadata"),  # Alibaba
    ("168.63.129.16", "metadata"),  # Azure, at a public address
    ("169.254.0.23", "metadata"),  # Tencent
    ("169.254.42.42", "metadata"),  # Scaleway
    ("169.254.169.253", "metadata"),  # the resolver of an Amazon VPC
    ("169.254.169.254", "metadata"),  # nearly all of them
    ("169.254.170.2", "metadata"),  # credentials of Amazon's containers
    ("169.254.170.23", "metadata"),
    ("192.0.0.192", "metadata"),  # Oracle
    # Global unicast is 2000::/3: all else is refused, by a name of its own where it has one.
    ("::/3", "reserved"),
    ("4000::/2", "reserved"),
    ("8000::/1", "reserved"),
    ("::", "unspecified"),
    ("::1", "loopback"),
    ("::ffff:0:0/96", ""),  # mapped
    ("::/96", "IPv4-compatible"),
    ("64:ff9b::/96", ""),  # NAT64: how hosts without IPv4 reach the rest
    ("64:ff9b:1::/48", "local NAT64"),
    ("100::/64", "discarded"),
    ("2001::/23", "reserved for protocols"),
    ("2001::/32", ""),  # Teredo
    ("2001:2::/48", "benchmarking"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", ""),  # 6to4
    ("3fff::/20", "documentation"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "private (site-local)"),
    ("ff00::/8", "multicast"),
    ("fd00:42::42", "metadata"),  # Scaleway
    ("fd00:ec2::23", "metadata"),  # Amazon
    ("fd00:ec2::253", "metadata"),
    ("fd00:ec2::254", "metadata"),
    ("fd20:ce::254", "metadata"),  # Google
    ("fe80::a9fe:a9fe", "metadata"),  # OpenStack
)
NEVER = frozenset({"unspecified", "multicast", "broadcast", "discarded"})
"""Naming these in a policy cannot be meant: no stream leads there, or one to the host itself."""


def _rows() -> tuple[Row, ...]:
    rows = [
        Row(network=read_network(text), why=why, admissible=why not in NEVER) for text, why in TABLE
    ]
    return tuple(sorted(rows, key=lambda row: -row.network.bits))


ROWS = _rows()


def refusal(
    address: bytes, *, own: Container[bytes] = (), admitted: Iterable[Network] = ()
) -> str | None:
    """Why this address is not dialled, or None. `own` are the addresses of the host itself."""
    found = _first_refused(address, own, tuple(admitted))
    if found is None:
        return None
    form, why = found
    return why if form is address else f"it carries an IPv4 address: {why}"


def remedy(
    address: bytes, *, own: Container[bytes] = (), admitted: Iterable[Network] = ()
) -> bytes | None:
    """The address that a policy would have to name for it; None where naming changes nothing."""
    found = _first_refused(address, own, tuple(admitted))
    return None if found is None or found[1] in NEVER else found[0]


def can_be_named(address: bytes) -> bool:
    """Whether a policy that names it is followed."""
    row = _row(address)
    return row is None or row.admissible


def _row(address: bytes) -> Row | None:
    return next((row for row in ROWS if address in row.network), None)


def _first_refused(
    address: bytes, own: Container[bytes], admitted: tuple[Network, ...]
) -> tuple[bytes, str] | None:
    for form in (address, *carried(address)):
        why = _refused(form, own, admitted)
        if why is not None:
            return form, why
    return None


def _refused(address: bytes, own: Container[bytes], admitted: tuple[Network, ...]) -> str | None:
    row = _row(address)
    if row is not None and row.why:
        if not row.admissible:
            return row.why
        if not any_holds(admitted, address, bits=row.network.bits):
            return row.why
    if address in own and not any_holds(admitted, address, bits=len(address) * 8):
        # A network that admits loopback admits the addresses in it, which are all the host's own.
        return None if row is not None and row.why == "loopback" else "the host's own"
    return None


def carried(address: bytes) -> Iterator[bytes]:
    """The IPv4 addresses inside an IPv6 address: where its packets would end."""
    if len(address) != 16:
        return
    head = int.from_bytes(address[:12], "big")
    compatible = head == 0 and address[12:15] != bytes(3)  # unlike :: and ::1
    if compatible or head in {0xFFFF, 0x64FF9B << 64}:  # mapped, NAT64
        yield address[12:]
    elif address.startswith(b"\x00\x64\xff\x9b\x00\x01"):
        yield from _local_nat64(address)
    elif address.startswith(b"\x20\x02"):  # 6to4
        yield address[2:6]
    elif address.startswith(b"\x20\x01\x00\x00"):  # Teredo: its server, and the client inverted
        yield address[4:8]
        yield bytes(byte ^ 0xFF for byte in address[12:])
    if address[8:12] in {b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe"}:  # ISATAP
        yield address[12:]


def _local_nat64(address: bytes) -> Iterator[bytes]:
    """RFC 6052 puts it where a prefix length says that is not written anywhere: at any of these.

    No IPv4 host begins with a zero, so there the prefix is longer.
    """
    places = (
        address[6:8] + address[9:11],
        address[7:8] + address[9:12],
        address[9:13],
        address[12:],
    )
    yield from (place for place in places if place[0])


class OwnAddresses:
    """The addresses of this host, as they are at the moment of asking.

    The kernel sends from the very address that it is to reach only if that is one of its own. The
    connect of a datagram socket looks up this route and sends nothing.
    """

    def __contains__(self, address: object) -> bool:
        if not isinstance(address, bytes):
            return False
        family = _socket.AF_INET if len(address) == 4 else _socket.AF_INET6
        try:
            probe = _socket.socket(family, _socket.SOCK_DGRAM)
        except OSError as error:
            # Without the family there is nothing to reach. Else descriptors are used up, which a
            # target can bring about: nobody knows then, and it is not dialled.
            return error.errno != errno.EAFNOSUPPORT
        try:
            probe.connect((write(address), 9))
            return read(str(probe.getsockname()[0]).partition("%")[0]) == address
        except OSError:
            return False
        finally:
            probe.close()
