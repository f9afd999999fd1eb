"""Test how packets from raw sockets are parsed. The tests of the allowlist use real raw sockets."""

import socket
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

if sys.platform != "linux":
    pytest.skip("the gateway is for Linux", allow_module_level=True)

from corral.network.gateway.raw_packets import Packet, _is_loopback

HEADER = bytes((0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 10, 1, 2, 3))
DATAGRAM = bytes((0x9C, 0x40, 0, 9, 0, 8, 0, 0))


class Received:
    """A fake raw socket that has received one packet. Only root can make a real one."""

    family = socket.AF_INET

    def __init__(self, data, *, info=(), sender=("127.0.0.1", 0)):
        self.message = (data, list(info), 0, sender)

    def recvmsg(self, *_sizes):
        return self.message


def test_a_packets_addresses_come_from_its_header():
    packet = Packet(Received(HEADER + DATAGRAM))
    assert (packet.sender, packet.receiver) == (bytes((127, 0, 0, 1)), bytes((10, 1, 2, 3)))
    assert packet.segment == DATAGRAM


def test_options_of_the_header_are_skipped():
    header = bytes((0x47,)) + HEADER[1:] + bytes(8)
    assert Packet(Received(header + DATAGRAM)).segment == DATAGRAM


def test_the_addresses_of_an_ipv6_packet_come_from_recvmsg_and_not_from_its_data():
    address = bytes(range(16))
    info = [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, address + bytes(4))]
    received = Received(DATAGRAM, info=info, sender=("fe80::1%lo", 0, 0, 1))
    received.family = socket.AF_INET6
    packet = Packet(received)
    assert packet.sender == socket.inet_pton(socket.AF_INET6, "fe80::1")
    assert (packet.receiver, packet.segment) == (address, DATAGRAM)


@given(st.binary(max_size=200))
def test_a_random_packet_has_both_addresses_or_is_ignored(data):
    packet = Packet(Received(data))
    assert not packet.segment or (len(packet.sender), len(packet.receiver)) == (4, 4)


@pytest.mark.parametrize(
    ("address", "is_own"),
    [("127.8.9.1", True), ("::1", True), ("128.0.0.1", False), ("7f00::1", False)],
)
def test_loopback_addresses_are_recognized(address, is_own):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    assert _is_loopback(socket.inet_pton(family, address)) is is_own
