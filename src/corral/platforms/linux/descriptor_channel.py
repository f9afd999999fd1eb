"""A socket pair over which descriptors are passed from one process to another (SCM_RIGHTS)."""

from __future__ import annotations

import array
import socket
import sys

from corral.platforms.linux import init

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.results import Results

MAX_DESCRIPTORS = 253
"""SCM_MAX_FD: what one message can carry."""


class DescriptorChannel:
    """What init opens in its namespaces goes to the supervisor through this."""

    def __init__(self, results: Results) -> None:
        self._supervisor_end, inside = socket.socketpair()
        self._init_end = inside.detach()
        init.hand_to_init(results, self._init_end)

    def send(self, fds: Sequence[int]) -> None:
        """Send from init, once."""
        with socket.socket(fileno=self._init_end) as end:
            send_descriptors(end, fds)

    def receive(self, *, wait: bool = True) -> list[int]:
        """Receive in the supervisor; return nothing if nothing was sent."""
        try:
            return receive_descriptors(self._supervisor_end, wait=wait)
        except BlockingIOError:
            return []

    def release(self) -> None:
        self._supervisor_end.close()


def send_descriptors(channel: socket.socket, fds: Sequence[int]) -> None:
    raw = array.array("i", fds)
    channel.sendmsg([b"D"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, raw)])


def receive_descriptors(channel: socket.socket, *, wait: bool = True) -> list[int]:
    found = array.array("i")
    size = socket.CMSG_SPACE(MAX_DESCRIPTORS * found.itemsize)
    _, ancillary, _, _ = channel.recvmsg(1, size, 0 if wait else socket.MSG_DONTWAIT)
    for _, _, raw in ancillary:
        found.frombytes(raw[: len(raw) - len(raw) % found.itemsize])
    return list(found)
