"""Wrap the system calls for Linux sockets. `import socket` would slow down every start."""

from __future__ import annotations

import os
import struct

from corral.abi import few_ctypes as ctypes
from corral.abi.linux import syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET = 1, 2, 3, 5
SOCK_CLOEXEC = 0o2000000
IPPROTO_TCP, IPPROTO_UDP, IPPROTO_IPV6 = 6, 17, 41
SOL_SOCKET, SO_ATTACH_FILTER, SCM_RIGHTS = 1, 26, 1
IPV6_V6ONLY, IPV6_RECVPKTINFO = 26, 49
MSG_DONTWAIT, MSG_NOSIGNAL, MSG_CMSG_CLOEXEC = 0x40, 0x4000, 0x40000000
MAX_DESCRIPTORS = 253
"""The largest number of descriptors that one message can carry (SCM_MAX_FD in the kernel)."""
MAX_DATA = 64
CMSGHDR = "@Nii"
CMSGHDR_BYTES = struct.calcsize(CMSGHDR)
SOCK_FILTER = "=HBBI"


def socket(family: int, kind: int, protocol: int = 0) -> int:
    return syscall("socket", family, kind | SOCK_CLOEXEC, protocol)


def socketpair() -> tuple[int, int]:
    pair = (ctypes.c_int * 2)()
    syscall("socketpair", AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)
    return pair[0], pair[1]


def bind(fd: int, address: bytes) -> None:
    syscall("bind", fd, address, len(address))


def listen(fd: int, backlog: int) -> None:
    syscall("listen", fd, backlog)


def setsockopt(fd: int, level: int, option: int, value: bytes) -> None:
    syscall("setsockopt", fd, level, option, value, len(value))


def attach_filter(fd: int, program: Sequence[tuple[int, int, int, int]]) -> None:
    """Make the kernel drop the packets that a classic BPF program does not accept."""
    code = b"".join(struct.pack(SOCK_FILTER, *item) for item in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    value = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, value)


def inet_address(address: bytes, port: int) -> bytes:
    """Return a sockaddr_in for an IPv4 address (4 bytes), or a sockaddr_in6 for IPv6 (16 bytes)."""
    if len(address) == 4:
        return struct.pack("=H", AF_INET) + struct.pack("!H4s8x", port, address)
    return struct.pack("=H", AF_INET6) + struct.pack("!HI16sI", port, 0, address, 0)


def send_descriptors(fd: int, data: bytes, descriptors: Sequence[int]) -> None:
    """Send `data` and `descriptors` in one message, without waiting."""
    rights = struct.pack(f"={len(descriptors)}i", *descriptors)
    control = struct.pack(CMSGHDR, CMSGHDR_BYTES + len(rights), SOL_SOCKET, SCM_RIGHTS) + rights
    control += bytes(-len(control) % 8)
    message = _Message(data, control)
    syscall("sendmsg", fd, message.header, MSG_DONTWAIT | MSG_NOSIGNAL)


def receive_descriptors(fd: int) -> tuple[bytes, list[int]]:
    """Return a message and its descriptors, or (b"", []) at end of file. Raise BlockingIOError if
    there is no message yet. The caller has to close the descriptors.
    """
    message = _Message(bytes(MAX_DATA), bytes(CMSGHDR_BYTES + 4 * MAX_DESCRIPTORS + 4))
    size = syscall("recvmsg", fd, message.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)
    control = message.control.raw
    length, level, kind = struct.unpack_from(CMSGHDR, control)
    found: list[int] = []
    if length > CMSGHDR_BYTES and (level, kind) == (SOL_SOCKET, SCM_RIGHTS):
        count = (length - CMSGHDR_BYTES) // 4
        found = list(struct.unpack_from(f"={count}i", control, CMSGHDR_BYTES))
    return message.data.raw[:size], found


class _Message:
    """A msghdr and the memory that it points to."""

    def __init__(self, data: bytes, control: bytes) -> None:
        self.data = ctypes.create_string_buffer(data, len(data))
        self.control = ctypes.create_string_buffer(control, len(control))
        vector = struct.pack("@PN", ctypes.addressof(self.data), len(data))
        self._vector = ctypes.create_string_buffer(vector, len(vector))
        # The fields of struct msghdr are the name and its length, the vector and its length, the
        # control data and its length, and the flags.
        fields = (0, 0, ctypes.addressof(self._vector), 1, ctypes.addressof(self.control))
        header = struct.pack("@PIxxxxPNPNixxxx", *fields, len(control), 0)
        self.header = ctypes.create_string_buffer(header)


def close_all(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        os.close(fd)
