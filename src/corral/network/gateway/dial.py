"""Dial the addresses of a host in the event loop, and use the first that answers."""

from __future__ import annotations

import _socket
import errno
import sys

from corral.network.addresses import format_address
from corral.network.budgets import DialBudget
from corral.network.dial_attempts import STAGGER_SECONDS, Attempts
from corral.network.gateway import event_loop

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Done = Callable[[_socket.socket | None], None]


class Dial:
    """Dials the addresses of one host. Calls `done` once, with the first connected socket, or with
    None if no address answers. After `cancel`, `done` is not called.
    """

    def __init__(
        self,
        loop: event_loop.Loop,
        addresses: Sequence[bytes],
        port: int,
        *,
        done: Done,
        timeout_seconds: float,
        budget: DialBudget,
        receive_buffer: int = 0,
    ) -> None:
        self._loop = loop
        self._attempts = Attempts(addresses, budget)
        self._port = port
        self._done: Done | None = done
        self._receive_buffer = receive_buffer
        self._trying: dict[int, _socket.socket] = {}
        self._stagger: event_loop.Timer | None = None
        self._limit = loop.after(timeout_seconds, lambda: self._finish(None))

    def start(self) -> None:
        self._try_next()

    def cancel(self) -> None:
        self._done = None
        self._finish(None)

    def _try_next(self) -> None:
        """Start one more connection attempt. Skip addresses for which `connect` fails immediately.

        If addresses are left after that, start another attempt after STAGGER_SECONDS. If none are
        left and no attempt is running, report failure.
        """
        if self._stagger is not None:
            self._stagger.cancel()
        attempts = self._attempts
        while (address := attempts.next(len(self._trying))) is not None and not self._try(address):
            pass
        if attempts.waiting:
            self._stagger = self._loop.after(STAGGER_SECONDS, self._try_next)
        elif not self._trying:
            self._finish(None)

    def _try(self, address: bytes) -> bool:
        family = _socket.AF_INET if len(address) == 4 else _socket.AF_INET6
        kind = _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
        try:
            trial = _socket.socket(family, kind)
        except OSError:
            return False  # no descriptors are left, or the host does not support this family
        if self._receive_buffer:
            trial.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, self._receive_buffer)
        if trial.connect_ex((format_address(address), self._port)) not in {0, errno.EINPROGRESS}:
            trial.close()
            return False
        self._trying[trial.fileno()] = trial
        self._loop.watch(trial.fileno(), event_loop.OUT, lambda _: self._connected(trial))
        return True

    def _connected(self, trial: _socket.socket) -> None:
        if trial.fileno() not in self._trying:
            return
        if trial.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR):
            self._release(trial).close()
            self._try_next()
            return
        try:
            trial.getpeername()
        except OSError:
            return  # the loop made this call for an old event: the socket is not connected yet
        self._finish(self._release(trial))

    def _release(self, trial: _socket.socket) -> _socket.socket:
        self._loop.forget(trial.fileno())
        return self._trying.pop(trial.fileno())

    def _finish(self, winner: _socket.socket | None) -> None:
        self._limit.cancel()
        if self._stagger is not None:
            self._stagger.cancel()
        self._attempts.waiting.clear()
        for trial in list(self._trying.values()):
            self._release(trial).close()
        self._attempts.settle(0)
        done, self._done = self._done, None
        if done is not None:
            done(winner)
        elif winner is not None:
            winner.close()
