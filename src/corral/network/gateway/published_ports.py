"""Forward connections from the host's loopback to the target's published ports
(`network.listen`).
"""

from __future__ import annotations

import _socket
import errno
import sys
import time

from corral.network.budgets import Timeouts
from corral.network.gateway import event_loop, splice
from corral.network.sockets import close_socket

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    class Dialer(Protocol):
        """Makes sockets in the target's network namespace."""

        def make(self) -> int: ...
        def close(self) -> None: ...


LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 256


class PublishedPorts:
    """Forwards connections from listeners on the host to the target. `listeners` maps each
    published port to the descriptor of its listener. The caller waits until `fileno()` is readable
    or `deadline()` has come, and then calls `run_ready()`, again and again.
    """

    def __init__(self, listeners: Mapping[int, int], dialer: Dialer) -> None:
        self._dialer = dialer
        self._loop = loop = event_loop.Loop()
        self.fileno, self.deadline, self.run_ready = loop.fileno, loop.deadline, loop.run_ready
        self._pipes = splice.Pipes()
        self._copies: set[splice.SplicedCopy] = set()
        self._waiting: dict[_socket.socket, _socket.socket] = {}
        self._inputs = event_loop.Inputs(self._loop)
        self._listeners = {_socket.socket(fileno=fd): port for port, fd in listeners.items()}
        for listener in self._listeners:
            self._inputs.add(listener, self._accept)

    def close(self) -> None:
        until = time.monotonic() + splice.LAST_SECONDS
        for copy in list(self._copies):
            copy.finish(until)
        for server, client in self._waiting.items():
            server.close()
            client.close()
        for listener in self._listeners:
            self._inputs.close(listener)
        self._loop.close()
        self._pipes.close()
        self._dialer.close()

    def _accept(self, listener: _socket.socket) -> None:
        client = self._inputs.accept(listener)
        if client is None:
            return
        server = None
        if len(self._copies) + len(self._waiting) < MAX_CONNECTIONS:
            server = self._dial(self._listeners[listener])
        if server is None:
            close_socket(client, reset=True)
            return
        self._waiting[server] = client
        self._loop.watch(server.fileno(), event_loop.OUT, lambda _: self._connected(server))

    def _dial(self, port: int) -> _socket.socket | None:
        try:
            server = _socket.socket(fileno=self._dialer.make())
        except OSError:
            return None
        if server.connect_ex((LOOPBACK, port)) in {0, errno.EINPROGRESS}:
            return server
        server.close()
        return None

    def _connected(self, server: _socket.socket) -> None:
        client = self._waiting.pop(server)
        self._loop.forget(server.fileno())
        if server.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR):
            server.close()
            close_socket(client, reset=True)
            return
        copy = splice.SplicedCopy(
            self._loop,
            client,
            server,
            pipes=self._pipes,
            idle_seconds=Timeouts().idle_seconds,
            done=lambda: self._copies.discard(copy),
        )
        self._copies.add(copy)
        copy.start()
