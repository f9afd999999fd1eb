"""Connect to the first of some addresses that answers, in the event loop."""

from __future__ import annotations

import _socket
import errno
import os
import sys
from collections.abc import Callable, Sequence

from corral.network.addresses import format_address
from corral.network.budgets import DialBudget
from corral.network.dial_attempts import STAGGER_SECONDS, Attempts
from corral.network.gateway import event_loop

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    Done = Callable[[_socket.socket | None, str], None]


class Dial:
    """Calls `done` once: with the connected socket, or with None and why there is none."""

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
        self._error = "no address"
        self._stagger: event_loop.Timer | None = None
        self._limit = loop.after(timeout_seconds, lambda: self._finish(None, "it does not answer"))

    def start(self) -> None:
        self._try_next()

    def cancel(self) -> None:
        self._done = None
        self._finish(None, "")

    def _try_next(self) -> None:
        """Try addresses until one more is under way."""
        if self._stagger is not None:
            self._stagger.cancel()
        attempts = self._attempts
        while (address := attempts.next(len(self._trying))) is not None and not self._try(address):
            pass
        if attempts.waiting:
            self._stagger = self._loop.after(STAGGER_SECONDS, self._try_next)
        elif not self._trying:
            self._finish(None, self._error)

    def _try(self, address: bytes) -> bool:
        family = _socket.AF_INET if len(address) == 4 else _socket.AF_INET6
        kind = _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
        try:
            trial = _socket.socket(family, kind)
        except OSError as error:  # descriptors are used up, or the host has no such family
            self._error = str(error)
            return False
        if self._receive_buffer:
            trial.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, self._receive_buffer)
        code = trial.connect_ex((format_address(address), self._port))
        if code not in {0, errno.EINPROGRESS}:
            self._error = os.strerror(code)
            trial.close()
            return False
        self._trying[trial.fileno()] = trial
        self._loop.watch(trial.fileno(), event_loop.OUT, lambda _: self._connected(trial))
        return True

    def _connected(self, trial: _socket.socket) -> None:
        if trial.fileno() not in self._trying:
            return
        code = trial.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        if code:
            self._error = os.strerror(code)
            self._drop(trial)
            self._try_next()
            return
        try:
            trial.getpeername()
        except OSError:
            return  # woken for nothing
        self._loop.forget(trial.fileno())
        del self._trying[trial.fileno()]
        self._finish(trial, "")

    def _drop(self, trial: _socket.socket) -> None:
        self._loop.forget(trial.fileno())
        del self._trying[trial.fileno()]
        trial.close()

    def _finish(self, winner: _socket.socket | None, error: str) -> None:
        self._limit.cancel()
        if self._stagger is not None:
            self._stagger.cancel()
        self._attempts.waiting.clear()
        for trial in list(self._trying.values()):
            self._drop(trial)
        self._attempts.settle(0)
        done, self._done = self._done, None
        if done is not None:
            done(winner, error)
        elif winner is not None:
            winner.close()
