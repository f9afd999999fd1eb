"""Test how the packet tap parses the first packet of a connection. The tests of the allowlist use
the real tap.
"""

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

if sys.platform != "linux":
    pytest.skip("the gateway is for Linux", allow_module_level=True)

from corral.network.gateway.packet_tap import TCP, UDP, parse_first_packet


def ipv4(protocol, segment, *, options=b"", address=(10, 1, 2, 3)):
    head = bytes([0x45 + len(options) // 4, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0])
    return head + bytes([127, 0, 0, 1]) + bytes(address) + options + segment


def ipv6(protocol, segment, address):
    return (
        struct.pack(">IHBB", 0x60000000, len(segment), protocol, 64) + bytes(16) + address + segment
    )


def tcp(port, flags):
    return struct.pack(">HHIIBBHHH", 40000, port, 1, 0, 0x50, flags, 1024, 0, 0)


def udp(port):
    return struct.pack(">HHHH", 40000, port, 8, 0)


def test_a_syn_is_a_first_packet():
    assert parse_first_packet(ipv4(TCP, tcp(443, 0x02))) == (TCP, bytes((10, 1, 2, 3)), 443)


@pytest.mark.parametrize("flags", [0x12, 0x10, 0x18, 0x04, 0x11])
def test_later_packets_are_ignored(flags):
    assert parse_first_packet(ipv4(TCP, tcp(443, flags))) is None


def test_datagrams_are_first_packets():
    assert parse_first_packet(ipv4(UDP, udp(53))) == (UDP, bytes((10, 1, 2, 3)), 53)


def test_ip_options_are_skipped():
    assert parse_first_packet(ipv4(UDP, udp(9), options=bytes(8))) == (UDP, bytes((10, 1, 2, 3)), 9)


def test_ipv6_packets_are_parsed():
    address = bytes(range(16))
    assert parse_first_packet(ipv6(TCP, tcp(80, 0x02), address)) == (TCP, address, 80)


@given(st.binary(max_size=200))
def test_random_packets_do_not_crash_the_tap(packet):
    found = parse_first_packet(packet)
    assert found is None or (found[0] in {TCP, UDP} and len(found[1]) in {4, 16})
