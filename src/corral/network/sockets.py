"""Provide the socket calls that both network engines use: the gateway and the HTTP proxy."""

import _socket
import struct
import sys

from corral.network.addresses import parse_address

LINGER_ZERO = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)


def look_up_addresses(name: str) -> list[bytes]:
    """Look up a name's addresses, in the order in which this host tries them. The call blocks."""
    # Pass the name as bytes, which must be ASCII. Given a str, Python would load its IDNA codec.
    found = _socket.getaddrinfo(
        name.encode("ascii"), None, _socket.AF_UNSPEC, _socket.SOCK_STREAM, 0, 0
    )
    return [parse_address(str(item[4][0]).partition("%")[0]) for item in found]


def close_socket(end: _socket.socket, *, reset: bool) -> None:
    """Close a socket. With `reset` the peer gets a TCP reset instead of an orderly end."""
    if reset:
        try:
            end.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, LINGER_ZERO)
        except OSError:
            pass  # the socket is already broken
    end.close()
