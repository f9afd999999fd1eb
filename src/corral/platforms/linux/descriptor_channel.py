"""Provide the only channel through which descriptors leave a sandbox (SCM_RIGHTS).

Init closes the sandbox's end of the channel when it locks itself down, and the target's process
closes it at exec. The first byte of a message says which kind of descriptors the message contains.
"""

from __future__ import annotations

import errno
import os
import time

from corral.abi import linux as abi
from corral.abi import linux_sockets as sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    Content = Literal["network", "sysv_lists", "private_space", "listener", "unix_socket"]

CODES: dict[Content, bytes] = {
    "network": b"N",
    "sysv_lists": b"S",
    "private_space": b"P",
    "listener": b"L",
    "unix_socket": b"U",
}
F_DUPFD_CLOEXEC = 1030
MAX_SEND_SECONDS = 5.0
"""How long `send` waits for the user's other processes to receive their descriptors.

Descriptors that were sent, but not yet received, count against the user. The kernel refuses to send
more of them than the sender's RLIMIT_NOFILE.
"""
FIRST_DESCRIPTOR = 3
"""The lowest descriptor number for the sandbox's end of the channel, because the target's streams
need the numbers 0 to 2.
"""


class DescriptorChannel:
    def __init__(self) -> None:
        self.outer, inner = sockets.socketpair()
        self.inner = abi.syscall("fcntl", inner, F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
        os.close(inner)
        self.open = True
        self._received: dict[bytes, list[int]] = {}

    def leave(self) -> None:
        """Close the supervisor's end in a process of the sandbox.

        While any process has this end open, a seccomp listener that was sent but not received stays
        open. If the supervisor ended before it received the listener, the target's calls would wait
        forever for an answer.
        """
        os.close(self.outer)

    def send(self, content: Content, descriptors: Sequence[int]) -> None:
        """Send descriptors out of the sandbox. The sender's own descriptors stay open."""
        until = time.monotonic() + MAX_SEND_SECONDS
        while True:
            try:
                return sockets.send_descriptors(self.inner, CODES[content], descriptors)
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS or time.monotonic() >= until:
                    raise
            time.sleep(0.01)

    def receive(self) -> None:
        """Receive all messages that have arrived.

        Set `open` to False if all processes have closed the sandbox's end of the channel.
        """
        while self.open:
            try:
                code, found = sockets.receive_descriptors(self.outer)
            except BlockingIOError:
                return
            self.open = bool(code)
            if found:
                self._received.setdefault(code, []).extend(found)

    def take(self, content: Content) -> list[int]:
        """Return the received descriptors of one kind. The caller has to close them."""
        self.receive()
        return self._received.pop(CODES[content], [])

    def release(self) -> None:
        for found in self._received.values():
            sockets.close_all(found)
        self._received.clear()
        os.close(self.outer)
