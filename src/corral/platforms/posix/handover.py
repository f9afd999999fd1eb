"""Send messages with file descriptors between corral's processes, over a unix stream socket."""

from __future__ import annotations

import _socket
import struct
import sys

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Sequence

INT = struct.calcsize("i")
LENGTH = struct.Struct("=Q")
MAX_READ_BYTES = 1 << 20


def receive_descriptors(socket: _socket.socket, size: int, count: int) -> tuple[bytes, list[int]]:
    """Receive at most `size` bytes and `count` descriptors. Empty bytes mean end of file."""
    data, ancillary, _, _ = socket.recvmsg(size, _socket.CMSG_SPACE(count * INT))
    found: list[int] = []
    for _, _, raw in ancillary:
        found += struct.unpack_from(f"{len(raw) // INT}i", raw)
    return data, found


def send(socket: _socket.socket, message: bytes, streams: Sequence[int]) -> None:
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("3i", *streams))
    socket.sendmsg([LENGTH.pack(len(message))], [rights])
    socket.sendall(message)


def receive(socket: _socket.socket) -> tuple[bytes, list[int]]:
    """Return a whole message and its three streams, or (b"", []) if the message is incomplete."""
    header, streams = receive_descriptors(socket, LENGTH.size, 3)
    if len(header) < LENGTH.size or len(streams) < 3:
        return b"", []
    left = LENGTH.unpack(header)[0]
    parts = []
    while left:
        chunk = socket.recv(min(left, MAX_READ_BYTES))
        if not chunk:
            return b"", []
        parts.append(chunk)
        left -= len(chunk)
    return b"".join(parts), streams
