"""Test the broker, with which the supervisor connects sockets for a target without namespaces. Most
tests check how it parses addresses and numbers that the target passes to its socket calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

if sys.platform != "linux":
    pytest.skip("the broker exists only on Linux", allow_module_level=True)

from corral.platforms.linux import socket_broker
from corral.platforms.linux.calling_thread import to_int
from corral.platforms.linux.mechanisms.brokered_sockets import BrokeredSockets, PreparedSockets
from corral.platforms.linux.socket_broker import SocketBroker, is_resolver, parse_address


@given(st.binary(max_size=128))
def test_any_bytes_are_an_address_or_an_error(raw):
    """Parse random bytes. Every IPv4 address must be returned as 4 bytes, even if it is mapped into
    IPv6.
    """
    try:
        address, port = parse_address(raw)
    except OSError as error:
        address, port = b"", error.errno
    if not address and port in {errno.EINVAL, errno.EAFNOSUPPORT}:
        return
    assert 0 <= port < 1 << 16
    assert len(address) in {4, 16}
    assert not (len(address) == 16 and address[:12] == bytes(10) + b"\xff\xff")


@given(st.binary(min_size=4, max_size=4), st.integers(0, 65535))
def test_a_mapped_address_equals_its_ipv4_address(address, port):
    plain = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, address)
    mapped = bytes(10) + b"\xff\xff" + address
    six = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI16sI", port, 0, mapped, 0)
    assert parse_address(plain) == parse_address(six) == (address, port)


@given(st.integers(0, 2**64 - 1))
def test_a_64_bit_register_is_read_as_a_32_bit_int_as_the_kernel_does(register):
    assert to_int(register) == ctypes.c_int(register & 0xFFFFFFFF).value


def test_only_port_53_of_loopback_is_the_resolver():
    one = bytes((127, 0, 0, 1))
    assert is_resolver(one, 53)
    assert not is_resolver(one, 54)
    assert not is_resolver(bytes((8, 8, 8, 8)), 53)


@pytest.mark.parametrize(
    "option", [(), (socket.TCP_DEFER_ACCEPT, 1), (socket.TCP_QUICKACK, 0)], ids=str
)
def test_socket_options_that_the_target_set_cannot_delay_the_supervisor(option, monkeypatch):
    """Let the supervisor connect a target's socket to its own listener. Before, set options on the
    socket that delay the last packet of the handshake. The supervisor must not wait for this
    packet.
    """
    monkeypatch.setattr(socket_broker, "ACCEPT_SECONDS", 0)
    step = BrokeredSockets(
        allow=(), admit=(), ports=(), unix=(), uid=os.getuid(), gid=os.getgid(), same_file=True
    )
    broker = SocketBroker(None, PreparedSockets(step=step, ports={}, unix={}), None)
    own = socket.socket()
    if option:
        own.setsockopt(socket.IPPROTO_TCP, *option)
    with contextlib.closing(broker), own, contextlib.closing(broker._join(own)) as end:
        own.sendall(b"x")
        end.setblocking(True)
        assert end.recv(1) == b"x"
