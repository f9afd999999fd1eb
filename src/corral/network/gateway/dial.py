"""Connect to the first of some addresses that answers (RFC 8305), without blocking.

The addresses are dialled as they are given: nothing is looked up between the check and the call.
"""

from __future__ import annotations

import _socket
import errno
import os
import sys

from corral.network.addresses import interleaved, write
from corral.network.gateway import event_loop

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corral.network.budgets import Spare
    from corral.network.gateway.event_loop import Loop, Timer

    Done = Callable[[_socket.socket | None, str], None]

STAGGER = 0.25
"""Seconds that one address has before the next is tried beside it."""


def new_socket(address: bytes, kind: int) -> _socket.socket:
    family = _socket.AF_INET if len(address) == 4 else _socket.AF_INET6
    return _socket.socket(family, kind | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC)


class Dial:
    """Calls `done` once: with the connected socket, or with None and why there is none."""

    def __init__(
        self,
        loop: Loop,
        addresses: Sequence[bytes],
        port: int,
        *,
        done: Done,
        timeout: float,
        spare: Spare,
        receive_buffer: int = 0,
    ) -> None:
        self._loop = loop
        self._left = interleaved(addresses)
        self._port = port
        self._done: Done | None = done
        self._receive_buffer = receive_buffer
        self._spare = spare
        self._taken = 0
        self._trying: dict[int, _socket.socket] = {}
        self._error = "no address"
        self._stagger: Timer | None = None
        self._limit = loop.after(timeout, lambda: self._finish(None, "it does not answer"))

    def start(self) -> None:
        self._next()

    def cancel(self) -> None:
        self._done = None
        self._finish(None, "")

    def _next(self) -> None:
        """Try addresses until one is under way."""
        if self._stagger is not None:
            self._stagger.cancel()
        while self._left:
            # Where all that is spare is taken, it is asked for again after the next while.
            if not self._may_try() or self._try(self._left.pop(0)):
                if self._left:
                    self._stagger = self._loop.after(STAGGER, self._next)
                return
            self._settle()
        if not self._trying:
            self._finish(None, self._error)

    def _may_try(self) -> bool:
        if self._trying and not self._spare.take():
            return False
        self._taken += bool(self._trying)
        return True

    def _settle(self) -> None:
        """Give back what was taken for those that are no longer under way."""
        needed = max(0, len(self._trying) - 1)
        self._spare.give(self._taken - needed)
        self._taken = needed

    def _try(self, address: bytes) -> bool:
        try:
            trial = new_socket(address, _socket.SOCK_STREAM)
        except OSError as error:  # descriptors are used up, or the host has no such family
            self._error = str(error)
            return False
        if self._receive_buffer:
            trial.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, self._receive_buffer)
        code = trial.connect_ex((write(address), self._port))
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
            self._next()
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
        self._settle()

    def _finish(self, won: _socket.socket | None, error: str) -> None:
        self._limit.cancel()
        if self._stagger is not None:
            self._stagger.cancel()
        self._left.clear()
        for trial in list(self._trying.values()):
            self._drop(trial)
        self._settle()
        done, self._done = self._done, None
        if done is not None:
            done(won, error)
        elif won is not None:
            won.close()
