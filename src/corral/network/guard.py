"""Refuse to dial addresses of the host, its neighbours and cloud services.

This module is the address guard. It is needed because the owner of a DNS zone chooses the addresses
of its names, so an allowed name may resolve to an address of the host or its local network. corral
has its own table of networks, because Python's `ipaddress` treats ::127.0.0.1 and fec0::1 as global
addresses, and in older versions also 64:ff9b:1::a00:1 and 2002:7f00:1::. If an IPv6 address
contains an IPv4 address, both addresses are checked.

The policy and the user's config can name networks whose addresses are admitted although they are
guarded. Such a network must not be larger than the guarded network that contains the address. So
10.0.0.0/8 and 10.1.2.3 admit private addresses, but 0.0.0.0/0 means the internet and admits no
guarded address.
"""

from __future__ import annotations

import _socket
import errno

from corral.network.addresses import Network, format_address, parse_address, parse_network
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator


@record
class GuardedNetwork:
    """A network from TABLE, with the reason why its addresses are refused.

    If several networks contain an address, the smallest of them applies. If `why` is empty, the
    network itself is no reason to refuse an address. Each of its addresses contains an IPv4
    address, and is refused if that IPv4 address is refused.
    """

    network: Network
    why: str


# The guarded networks, each with the reason for its refusal. They come from IANA's special-purpose
# registries, the multicast and reserved blocks, and cloud metadata services.
TABLE = (
    ("0.0.0.0/8", "unspecified"),  # a connection to 0.0.0.0 reaches loopback
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by a carrier (CGNAT)"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved for protocols"),
    ("192.0.2.0/24", "reserved for documentation"),
    ("192.88.99.0/24", "a 6to4 relay"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "reserved for benchmarking, and used by corral's gateway"),
    ("198.51.100.0/24", "reserved for documentation"),
    ("203.0.113.0/24", "reserved for documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("255.255.255.255", "broadcast"),
    ("100.100.100.200", "metadata"),  # Alibaba
    ("168.63.129.16", "metadata"),  # Azure (this address is not in a reserved network)
    ("169.254.0.23", "metadata"),  # Tencent
    ("169.254.42.42", "metadata"),  # Scaleway
    ("169.254.169.253", "metadata"),  # the DNS resolver in Amazon's private networks (VPC)
    ("169.254.169.254", "metadata"),  # nearly all clouds
    ("169.254.170.2", "metadata"),  # gives Amazon's containers their credentials
    ("169.254.170.23", "metadata"),
    ("192.0.0.192", "metadata"),  # Oracle
    # Only 2000::/3 is global unicast, so these three networks refuse all other IPv6 addresses. The
    # smaller networks below give some addresses a more specific reason, or an empty one.
    ("::/3", "reserved"),
    ("4000::/2", "reserved"),
    ("8000::/1", "reserved"),
    ("::", "unspecified"),
    ("::1", "loopback"),
    ("::ffff:0:0/96", ""),  # mapped
    ("::/96", "IPv4-compatible"),
    ("64:ff9b::/96", ""),  # NAT64, through which hosts without IPv4 reach IPv4 addresses
    ("64:ff9b:1::/48", "local NAT64"),
    ("100::/64", "discarded"),
    ("2001::/23", "reserved for protocols"),
    ("2001::/32", ""),  # Teredo
    ("2001:2::/48", "benchmarking"),
    ("2001:db8::/32", "reserved for documentation"),
    ("2002::/16", ""),  # 6to4
    ("3fff::/20", "reserved for documentation"),
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
NOT_ADMISSIBLE = frozenset({"unspecified", "multicast", "broadcast", "discarded"})
"""No policy can make an exception for addresses that are refused for one of these reasons, because
they cannot be reached or mean the host itself.
"""


_guarded_networks: list[GuardedNetwork] = []


def guarded_networks() -> list[GuardedNetwork]:
    """Return the networks of TABLE, smallest first. The table is parsed on the first call."""
    if not _guarded_networks:
        _guarded_networks.extend(
            sorted(
                (GuardedNetwork(network=parse_network(text), why=why) for text, why in TABLE),
                key=lambda guarded: -guarded.network.bits,
            )
        )
    return _guarded_networks


@record
class Refusal:
    """The reason why an address must not be dialled. `remedy` is the address that a policy has to
    name to allow the connection, or None if no policy can allow it.
    """

    why: str
    remedy: bytes | None


def find_refusal(
    address: bytes, *, host_addresses: Container[bytes] = (), admitted: Iterable[Network] = ()
) -> Refusal | None:
    """Return the reason why this address must not be dialled, or None if it may be dialled."""
    networks = tuple(admitted)
    for form in (address, *embedded_v4(address)):
        why = _why_refused(form, host_addresses, networks)
        if why is not None:
            remedy = None if why in NOT_ADMISSIBLE else form
            text = why if form is address else f"it contains an IPv4 address: {why}"
            return Refusal(why=text, remedy=remedy)
    return None


def is_admissible(address: bytes) -> bool:
    """Return whether a policy can admit this address by naming it."""
    guarded = find_guarded(address)
    return guarded is None or guarded.why not in NOT_ADMISSIBLE


def is_metadata_service(address: bytes) -> bool:
    """Return whether an address, or an IPv4 address inside it, belongs to a metadata service."""
    found = map(find_guarded, (address, *embedded_v4(address)))
    return any(one is not None and one.why == "metadata" for one in found)


def find_guarded(address: bytes, max_bits: int = 128) -> GuardedNetwork | None:
    """Return the smallest guarded network that contains the address, or None. Ignore networks with
    a prefix of more than `max_bits` bits.
    """
    for guarded in guarded_networks():
        if guarded.network.bits <= max_bits and address in guarded.network:
            return guarded
    return None


def _why_refused(
    address: bytes, host_addresses: Container[bytes], admitted: tuple[Network, ...]
) -> str | None:
    named = max((network.bits for network in admitted if address in network), default=-1)
    guarded = find_guarded(address)
    why = "" if guarded is None else guarded.why
    if guarded is not None and why and (why in NOT_ADMISSIBLE or named < guarded.network.bits):
        return why
    # The host's own addresses must be admitted one by one, not as part of a network. This does not
    # hold for loopback addresses: 127.0.0.0/8 admits all of them.
    if address in host_addresses and named < len(address) * 8 and why != "loopback":
        return "the host's own address"
    return None


def embedded_v4(address: bytes) -> Iterator[bytes]:
    """Yield the IPv4 addresses to which packets for this IPv6 address may be delivered."""
    if len(address) != 16:
        return
    head = int.from_bytes(address[:12], "big")
    # :: and ::1 have the form of an IPv4-compatible address, but contain no IPv4 address. The same
    # holds for ::2 to ::ff.
    compatible = head == 0 and address[12:15] != bytes(3)
    # IPv4-compatible addresses, IPv4 addresses mapped to IPv6, and NAT64 addresses
    if compatible or head in {0xFFFF, 0x64FF9B << 64}:
        yield address[12:]
    elif address.startswith(b"\x00\x64\xff\x9b\x00\x01"):
        # In RFC 6052 the position of the IPv4 address depends on the length of the prefix, which is
        # unknown here. So the bytes at each possible position count as an address. Addresses that
        # begin with a zero byte are left out, because no host has such an address.
        split = (address[6:8] + address[9:11], address[7:8] + address[9:12])
        yield from (found for found in (*split, address[9:13], address[12:]) if found[0])
    elif address.startswith(b"\x20\x02"):  # 6to4
        yield address[2:6]
    # Teredo: the address of the server, and the address of the client with all its bits inverted
    elif address.startswith(b"\x20\x01\x00\x00"):
        yield address[4:8]
        yield bytes(byte ^ 0xFF for byte in address[12:])
    if address[8:12] in {b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe"}:  # ISATAP
        yield address[12:]


class HostAddresses:
    """A container of this host's current addresses.

    To test an address, `in` connects a datagram socket to it, without sending anything. The kernel
    then gives the socket a local address. If the tested address is the host's own, this local
    address is the same.
    """

    def __contains__(self, address: object) -> bool:
        if not isinstance(address, bytes):
            return False
        family = _socket.AF_INET if len(address) == 4 else _socket.AF_INET6
        try:
            probe = _socket.socket(family, _socket.SOCK_DGRAM)
        except OSError as error:
            # A host that does not support the address family has no such addresses. After any other
            # error, such as too many open descriptors, the address counts as the host's own, so
            # that it is not dialled.
            return error.errno != errno.EAFNOSUPPORT
        try:
            probe.connect((format_address(address), 9))
            return parse_address(str(probe.getsockname()[0]).partition("%")[0]) == address
        except OSError:
            return False
        finally:
            probe.close()
