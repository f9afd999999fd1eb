"""Connect to the first of some addresses that answers (RFC 8305), in a thread that may wait.

`dial.py` does the same for a loop that may not. The addresses are dialled as they are given.
"""

from __future__ import annotations

import os
import selectors
import socket
import time

from corral.network.addresses import interleaved, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.network.budgets import Spare

STAGGER = 0.25
"""Seconds that one address has before the next is tried beside it."""


def connect(
    addresses: Sequence[bytes], port: int, *, patience: float, spare: Spare
) -> socket.socket:
    """Blocking, as sockets are at first; OSError says what the last one failed of."""
    race = _Race(addresses, port, spare)
    deadline = time.monotonic() + patience
    try:
        while race.start_next():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("it does not answer")
            won = race.wait(min(left, STAGGER) if race.waiting else left)
            if won is not None:
                return won
        raise race.failed
    finally:
        race.end()


class _Race:
    def __init__(self, addresses: Sequence[bytes], port: int, spare: Spare) -> None:
        self.failed = OSError("no address")
        self.waiting = interleaved(addresses)
        self._port = port
        self._spare = spare
        self._taken = 0
        # One that needs no descriptor of its own.
        self._selector: selectors.BaseSelector = getattr(
            selectors, "PollSelector", selectors.SelectSelector
        )()

    def start_next(self) -> bool:
        """Try addresses until one more is under way; False if none is at all."""
        while self.waiting and self._may_start():
            address = self.waiting.pop(0)
            family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
            try:
                end = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:  # descriptors are used up, or the host has no such family
                self.failed = error
                continue
            try:
                end.setblocking(False)
                end.connect((write(address), self._port))
            except BlockingIOError:
                pass
            except OSError as error:
                self.failed = error
                end.close()
                continue
            self._selector.register(end, selectors.EVENT_WRITE)
            break
        return bool(self._selector.get_map())

    def _may_start(self) -> bool:
        """The first always; another beside it while there is something to spare."""
        under_way = len(self._selector.get_map())
        self._settle(under_way)
        if under_way and not self._spare.take():
            return False
        self._taken += bool(under_way)
        return True

    def _settle(self, under_way: int) -> None:
        needed = min(self._taken, max(0, under_way - 1))
        self._spare.give(self._taken - needed)
        self._taken = needed

    def wait(self, seconds: float) -> socket.socket | None:
        """The one that is connected; None if that is none yet."""
        for key, _ in self._selector.select(seconds):
            end = key.fileobj
            assert isinstance(end, socket.socket)  # noqa: S101 - no other was registered
            self._selector.unregister(end)
            code = end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code == 0:
                end.setblocking(True)
                return end
            self.failed = OSError(code, os.strerror(code))
            end.close()
        return None

    def end(self) -> None:
        self._settle(0)
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)  # noqa: S101 - as above
            key.fileobj.close()
        self._selector.close()
