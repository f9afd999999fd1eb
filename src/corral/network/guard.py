"""The address guard: which addresses the gateway never dials, whatever name led there.

The owner of a name's zone decides where it leads, so an allowed name may point at the host itself,
at its neighbours or at a cloud's metadata service. The table is corral's own because `ipaddress`
calls ::127.0.0.1, 64:ff9b:1::a00:1, 2002:7f00:1:: and fec0::1 global. An address that carries an
IPv4 address is refused for its own sake or for what it carries.

A network that the policy or the user's config names admits addresses if it is no wider than the
guarded network around them: 10.0.0.0/8 and 10.1.2.3 admit private addresses, 0.0.0.0/0 means the
internet and admits none.
"""

import _socket
import errno
from collections.abc import Container, Iterable, Iterator

from corral.network.addresses import Network, format_address, parse_address, parse_network
from corral.record import record


@record
class GuardedNetwork:
    """The smallest one around an address decides; without a `why`, the IPv4 address inside does."""

    network: Network
    why: str


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
NOT_ADMISSIBLE = frozenset({"unspecified", "multicast", "broadcast", "discarded"})
"""Naming these in a policy has no effect: no connection leads there, or one to the host itself."""


GUARDED_NETWORKS = tuple(
    sorted(
        (GuardedNetwork(network=parse_network(text), why=why) for text, why in TABLE),
        key=lambda guarded: -guarded.network.bits,
    )
)


@record
class Refusal:
    """`remedy` is the address that a policy has to name to admit it; None if none helps."""

    why: str
    remedy: bytes | None


def find_refusal(
    address: bytes, *, host_addresses: Container[bytes] = (), admitted: Iterable[Network] = ()
) -> Refusal | None:
    """Return why this address is not dialled, or None. `host_addresses` are the host's own."""
    networks = tuple(admitted)
    for form in (address, *embedded_v4(address)):
        why = _why_refused(form, host_addresses, networks)
        if why is not None:
            remedy = None if why in NOT_ADMISSIBLE else form
            text = why if form is address else f"it carries an IPv4 address: {why}"
            return Refusal(why=text, remedy=remedy)
    return None


def is_admissible(address: bytes) -> bool:
    """Whether naming this address in a policy has an effect."""
    guarded = find_guarded(address)
    return guarded is None or guarded.why not in NOT_ADMISSIBLE


def find_guarded(address: bytes, max_bits: int = 128) -> GuardedNetwork | None:
    """Return the smallest guarded network around an address, or around a network of that size."""
    for guarded in GUARDED_NETWORKS:
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
    # A network that admits loopback admits all addresses in it, which are all the host's own.
    if address in host_addresses and named < len(address) * 8 and why != "loopback":
        return "the host's own"
    return None


def embedded_v4(address: bytes) -> Iterator[bytes]:
    """Yield the IPv4 addresses inside an IPv6 address: where its packets would end."""
    if len(address) != 16:
        return
    head = int.from_bytes(address[:12], "big")
    compatible = head == 0 and address[12:15] != bytes(3)  # unlike :: and ::1
    if compatible or head in {0xFFFF, 0x64FF9B << 64}:  # mapped, NAT64
        yield address[12:]
    elif address.startswith(b"\x00\x64\xff\x9b\x00\x01"):
        # RFC 6052: where it is depends on an unknown prefix length. No IPv4 host begins with a
        # zero, so there the prefix is longer.
        split = (address[6:8] + address[9:11], address[7:8] + address[9:12])
        yield from (found for found in (*split, address[9:13], address[12:]) if found[0])
    elif address.startswith(b"\x20\x02"):  # 6to4
        yield address[2:6]
    elif address.startswith(b"\x20\x01\x00\x00"):  # Teredo: its server, and the client inverted
        yield address[4:8]
        yield bytes(byte ^ 0xFF for byte in address[12:])
    if address[8:12] in {b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe"}:  # ISATAP
        yield address[12:]


class HostAddresses:
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
            # Without the family nothing can be reached. Any other error, such as descriptors that
            # a target has used up, leaves it unknown: the address is then not dialled.
            return error.errno != errno.EAFNOSUPPORT
        try:
            probe.connect((format_address(address), 9))
            return parse_address(str(probe.getsockname()[0]).partition("%")[0]) == address
        except OSError:
            return False
        finally:
            probe.close()
