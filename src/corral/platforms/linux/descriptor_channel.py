"""A socket pair over which init passes descriptors to the supervisor (SCM_RIGHTS)."""

from __future__ import annotations

import socket
import sys

from corral.platforms.linux import init

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.model import Results

MAX_DESCRIPTORS = 253
"""SCM_MAX_FD: what one message can carry."""


class DescriptorChannel:
    def __init__(self, results: Results) -> None:
        self._supervisor_end, inside = socket.socketpair()
        self._init_end = inside.detach()
        results.get(init.InitDescriptors).fds.append(self._init_end)

    def send(self, fds: Sequence[int]) -> None:
        """Send them from init, once."""
        with socket.socket(fileno=self._init_end) as end:
            socket.send_fds(end, [b"D"], fds)

    def receive(self, *, wait: bool = True) -> list[int]:
        """Receive them in the supervisor; return nothing if nothing was sent."""
        flags = 0 if wait else socket.MSG_DONTWAIT
        try:
            return socket.recv_fds(self._supervisor_end, 1, MAX_DESCRIPTORS, flags)[1]
        except BlockingIOError:
            return []

    def release(self) -> None:
        self._supervisor_end.close()
