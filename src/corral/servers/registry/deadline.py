"""End a download at its deadline, whatever the server sends.

A socket's timeout is not enough, because it starts again with each byte. Without a deadline, a
server could make corral wait forever, by sending endless headers, interim answers or trailers, a
TLS handshake that never ends, or (as a proxy) an endless answer.
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
    """A context manager that shuts down all connections of its `handlers` after `seconds`, or when
    the `with` block ends.
    """

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
        with self._lock:
            for one in self._sockets:
                _shut_down(one)
                # Do not call `one.close`. It takes effect only after all file objects that read the
                # socket are closed, and an exception may keep such a file object open.
                if (descriptor := one.detach()) >= 0:
                    socket.close(descriptor)
            self._sockets.clear()

    def _end(self) -> None:
        with self._lock:
            for one in self._sockets:
                _shut_down(one)

    def _connect(
        self, address: tuple[str, int], timeout: float, source: tuple[str, int] | None = None
    ) -> socket.socket:
        """Connect like `socket.create_connection`, but try no further addresses after the deadline.
        An open connection is shut down at the deadline.
        """
        problem: OSError = TimeoutError("timed out")
        for *_, (host, port, *_) in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            left = self._until - time.monotonic()
            if left <= 0:
                break
            try:
                made = socket.create_connection((str(host), port), min(timeout, left), source)
            except OSError as error:
                problem = error
                continue
            made.settimeout(timeout)
            self._add(made)
            return made
        raise problem

    def _add(self, made: socket.socket) -> None:
        """Remember a connection, so that the deadline can end it. Also remember a duplicate of its
        descriptor, because TLS detaches the original from `made` before the handshake.
        """
        with self._lock:
            self._sockets += (made, made.dup())
            if self.is_over:
                _shut_down(made)

    def handlers(self) -> list[urllib.request.BaseHandler]:
        """Return handlers for `urllib`. Their connections end at the deadline."""
        # Imported here, because on macOS it loads `_scproxy`, which opens guarded descriptors.
        # macOS kills a process that closes or duplicates such a descriptor.
        import urllib.request

        connect = self._connect

        # `http.client` calls `_create_connection` before a proxy's CONNECT and before TLS, so the
        # deadline applies to both.
        class Connection(http.client.HTTPConnection):
            def connect(self) -> None:
                self._create_connection = connect
                super().connect()

        class SecureConnection(http.client.HTTPSConnection):
            def connect(self) -> None:
                self._create_connection = connect
                super().connect()

        class Handler(urllib.request.HTTPHandler):
            def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(Connection, request)

        class SecureHandler(urllib.request.HTTPSHandler):
            def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(SecureConnection, request)

        return [Handler(), SecureHandler()]


def _shut_down(one: socket.socket) -> None:
    with suppress(OSError):  # raised if the server has already closed the connection
        one.shutdown(socket.SHUT_RDWR)
