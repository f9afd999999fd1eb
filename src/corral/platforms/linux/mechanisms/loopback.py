"""Bring up loopback, the only device of a new network namespace."""

from __future__ import annotations

import os
import struct
import sys

from corral.abi import linux as abi
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage


@record
class Loopback:
    """Brings up loopback.

    If `alone` is true, `verify` checks that there is no route to an address outside the sandbox.
    """

    name = "loopback"
    alone: bool = True
    stage: Stage = "init"

    def describe(self) -> str:
        return "network: loopback only" if self.alone else "network: loopback up"

    def apply(self, _results: Results) -> None:
        import fcntl

        fd = abi.syscall("socket", abi.AF_INET, abi.SOCK_DGRAM | abi.SOCK_CLOEXEC, 0)
        try:
            request = struct.pack("16sH22x", b"lo", 0)
            flags = struct.unpack_from("H", fcntl.ioctl(fd, abi.SIOCGIFFLAGS, request), 16)[0]
            fcntl.ioctl(fd, abi.SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | abi.IFF_UP))
        finally:
            os.close(fd)

    def verify(self, _results: Results) -> None:
        """Check that there is a route to loopback, but none to TEST-NET-1 (192.0.2.0/24)."""
        if not self.alone:
            return
        fd = abi.syscall("socket", abi.AF_INET, abi.SOCK_DGRAM | abi.SOCK_CLOEXEC, 0)
        try:
            # On a datagram socket, connect only looks up a route and sends nothing.
            abi.syscall("connect", fd, _address(127, 0, 0, 1), 16)
            try:
                abi.syscall("connect", fd, _address(192, 0, 2, 1), 16)
            except OSError:
                return
        finally:
            os.close(fd)
        raise OSError(0, "there is a route to an address outside the sandbox")


def _address(*octets: int) -> bytes:
    return struct.pack("=HH4B8x", abi.AF_INET, 9 << 8, *octets)
