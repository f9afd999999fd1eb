"""The way in: connections to the host's loopback that go on to a port of the target's."""

from __future__ import annotations

import _socket
import errno
import sys

from corral.network.gateway import event_loop, splice

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    class Dialer(Protocol):
        def make(self) -> int: ...
        def close(self) -> None: ...


LOOPBACK = "127.0.0.1"
IDLE = 3600.0
MOST = 256


class Inlets:
    """Takes over the listeners by port; driven like the gateway."""

    def __init__(self, listeners: Mapping[int, int], dialer: Dialer) -> None:
        self._dialer = dialer
        self._loop = event_loop.Loop()
        self._pipes = splice.Pipes()
        self._relays: set[splice.Relay] = set()
        self._waiting: dict[_socket.socket, _socket.socket] = {}
        self._listeners = {_socket.socket(fileno=fd): port for port, fd in listeners.items()}
        for listener in self._listeners:
            listener.setblocking(False)
            self._listen(listener)

    def fileno(self) -> int:
        return self._loop.fileno()

    def deadline(self) -> float | None:
        return self._loop.deadline()

    def run_ready(self) -> None:
        self._loop.run_ready()

    def close(self) -> None:
        for relay in list(self._relays):
            relay.close(reset=True)
        for server, client in self._waiting.items():
            server.close()
            client.close()
        for listener in self._listeners:
            listener.close()
        self._loop.close()
        self._pipes.close()
        self._dialer.close()

    def _listen(self, listener: _socket.socket) -> None:
        self._loop.watch(listener.fileno(), event_loop.IN, lambda _: self._accept(listener))

    def _accept(self, listener: _socket.socket) -> None:
        try:
            client = event_loop.accept(listener)
        except OSError as error:
            if error.errno not in event_loop.GONE:
                self._loop.forget(listener.fileno())
                self._loop.after(event_loop.MOMENT, lambda: self._listen(listener))
            return
        if len(self._relays) + len(self._waiting) >= MOST:
            splice.close(client, reset=True)
            return
        try:
            server = _socket.socket(fileno=self._dialer.make())
        except OSError:
            splice.close(client, reset=True)
            return
        code = server.connect_ex((LOOPBACK, self._listeners[listener]))
        if code not in {0, errno.EINPROGRESS}:
            server.close()
            splice.close(client, reset=True)
            return
        self._waiting[server] = client
        self._loop.watch(server.fileno(), event_loop.OUT, lambda _: self._connected(server))

    def _connected(self, server: _socket.socket) -> None:
        client = self._waiting.pop(server)
        self._loop.forget(server.fileno())
        if server.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR):
            server.close()
            splice.close(client, reset=True)
            return
        relay = splice.Relay(
            self._loop,
            client,
            server,
            pipes=self._pipes,
            idle=IDLE,
            done=lambda: self._relays.discard(relay),
        )
        self._relays.add(relay)
        relay.start()
