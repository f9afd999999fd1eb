"""Dial the addresses of a host, and use the first that answers. The calling thread waits."""

import os
import selectors
import socket
import time
from collections.abc import Sequence

from corral.network.addresses import format_address
from corral.network.budgets import DialBudget
from corral.network.dial_attempts import STAGGER_SECONDS, Attempts


def connect(
    addresses: Sequence[bytes], port: int, *, timeout_seconds: float, budget: DialBudget
) -> socket.socket:
    """Return a blocking socket that is connected to the first address that answers. If no address
    answers, raise the last OSError.
    """
    dial = _Dial(addresses, port, budget)
    deadline = time.monotonic() + timeout_seconds
    try:
        while dial.try_next():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the host does not answer")
            winner = dial.wait(min(left, STAGGER_SECONDS) if dial.attempts.waiting else left)
            if winner is not None:
                return winner
        raise dial.error
    finally:
        dial.close()


class _Dial:
    def __init__(self, addresses: Sequence[bytes], port: int, budget: DialBudget) -> None:
        self.error = OSError("no address")
        self.attempts = Attempts(addresses, budget)
        self._port = port
        # Unlike epoll and kqueue, poll and select need no descriptor of their own.
        self._selector: selectors.BaseSelector = getattr(
            selectors, "PollSelector", selectors.SelectSelector
        )()

    def try_next(self) -> bool:
        """Start the next attempt if an address is left. Return whether any attempt is running."""
        under_way = self._selector.get_map()
        while (address := self.attempts.next(len(under_way))) is not None:
            family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
            try:
                end = socket.socket(family, socket.SOCK_STREAM)
            # No descriptor is free, or the host does not support this address family.
            except OSError as error:
                self.error = error
                continue
            try:
                end.setblocking(False)
                end.connect((format_address(address), self._port))
            except BlockingIOError:
                pass
            except OSError as error:
                self.error = error
                end.close()
                continue
            self._selector.register(end, selectors.EVENT_WRITE, end)
            break
        return bool(under_way)

    def wait(self, seconds: float) -> socket.socket | None:
        """Return a connected socket, or None if no socket connects within `seconds`."""
        for key, _ in self._selector.select(seconds):
            end: socket.socket = key.data
            self._selector.unregister(end)
            code = end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code == 0:
                end.setblocking(True)
                return end
            self.error = OSError(code, os.strerror(code))
            end.close()
        return None

    def close(self) -> None:
        self.attempts.settle(0)
        for key in list(self._selector.get_map().values()):
            key.data.close()
        self._selector.close()
