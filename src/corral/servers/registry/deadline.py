"""End a download when its time is over, whatever its server sends.

A timeout of a socket starts again with each byte. `http.client` waits for headers, interim answers
and trailers as long as a server sends them, so a server could keep a download busy forever.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import urllib.request
    from typing import Self


class Deadline:
    """A context manager. After some seconds it shuts down all connections of its `handlers`."""

    def __init__(self, seconds: float) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._until = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        with self._lock:
            for one in self._sockets:
                _shut_down(one)

    def _add(self, made: socket.socket) -> None:
        with self._lock:
            self._sockets.append(made)
            if self.is_over:
                _shut_down(made)

    def handlers(self) -> list[urllib.request.BaseHandler]:
        """Return handlers for `urllib` whose connections end at the deadline."""
        import urllib.request  # on macOS it needs a module that other systems lack

        add = self._add

        class Connection(http.client.HTTPConnection):
            def connect(self) -> None:
                super().connect()
                add(self.sock)

        class SecureConnection(http.client.HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                add(self.sock)

        class Handler(urllib.request.HTTPHandler):
            def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(Connection, request)

        class SecureHandler(urllib.request.HTTPSHandler):
            def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(SecureConnection, request)

        return [Handler(), SecureHandler()]


def _shut_down(one: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        # The `shutdown` of a TLS socket would also remove its TLS state, which another thread is
        # using. So the plain socket's `shutdown` is called.
        socket.socket.shutdown(one, socket.SHUT_RDWR)
