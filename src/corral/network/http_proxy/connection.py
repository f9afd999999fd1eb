"""Handle a connection to an HTTP proxy: read its request, check the destination, dial, copy."""

import hmac
import socket
import time
from collections.abc import Callable
from typing import Protocol

from corral.network.http_proxy.outbound import Outbound
from corral.network.http_proxy.request import RefusedError, Request, parse_request
from corral.network.tls_hello import HelloReader


class Stream(Protocol):
    """The connection to the client. All methods raise OSError if the connection is lost, and `recv`
    raises TimeoutError if nothing arrives for `timeout` seconds.
    """

    def recv(self, timeout: float, /) -> bytes: ...
    def send(self, data: bytes, /) -> None: ...
    def end(self) -> None: ...
    def reset(self) -> None: ...


class Copy(Protocol):
    """Passes bytes between the target and the server, until both have stopped sending. `up` counts
    the bytes to the server, and `down` those to the target.
    """

    up: int
    down: int

    def run(self) -> None: ...


class Connection:
    """Serves one client. If `password` is not empty, the client has to send it."""

    def __init__(
        self,
        out: Outbound,
        stream: Stream,
        make_copy: Callable[[socket.socket], Copy],
        *,
        password: bytes = b"",
    ) -> None:
        self._out = out
        self._stream = stream
        self._make_copy = make_copy
        self._password = password
        self._reached_server = False

    def serve(self) -> None:
        """Serve the client until its connection ends. After an error, reset the connection."""
        try:
            self._serve()
        except (OSError, ValueError):
            try:
                self._stream.reset()
            except OSError:
                pass  # the connection is already lost

    def pause_seconds(self) -> float:
        """Return for how many seconds this connection still counts as open after it has ended.

        This is 0 if the connection reached a server. After too many failures, a failed connection
        counts as open for a while, so that fewer new connections are accepted.
        """
        return 0.0 if self._reached_server else self._out.count_failed()

    def _serve(self) -> None:
        try:
            request = self._read_request()
        except RefusedError as error:
            self._answer("400 Bad Request", str(error))
            return
        # Check the password before the destination, so that a process outside of the run learns
        # nothing about the run's policy.
        if not hmac.compare_digest(request.password if self._password else b"", self._password):
            self._answer(
                "407 Proxy Authentication Required",
                "this proxy serves only one run of corral, and requires that run's password",
                'Proxy-Authenticate: Basic realm="corral"\r\n',
            )
            return
        destination = request.destination
        if not self._out.check.allows(destination):
            text = f"{destination.host}:{destination.port} is not in network.allow"
            self._answer("403 Forbidden", text)
            return
        try:
            server = self._out.connect(destination)
        except (OSError, ValueError):
            self._out.count(destination.host, failed=True)
            self._answer("502 Bad Gateway", f"{destination.host} cannot be reached")
            return
        with server:
            self._copy(request, server)

    def _copy(self, request: Request, server: socket.socket) -> None:
        host = request.destination.host
        if request.tunnel:
            self._stream.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        first = self._read_first(request)
        if first is None:
            self._out.count(host, failed=True)
            self._stream.reset()
            return
        self._reached_server = True
        copy = self._make_copy(server)
        try:
            server.settimeout(self._out.timeouts.request_seconds)
            server.sendall(first)
            server.settimeout(None)
            copy.run()
        finally:
            self._out.count(host, failed=False, up=len(first) + copy.up, down=copy.down)

    def _deadline(self) -> float:
        return time.monotonic() + self._out.timeouts.request_seconds

    def _recv(self, deadline: float) -> bytes:
        """Receive some bytes before `deadline`. In a loop, pass the same deadline each time, so
        that a client cannot get more time by sending single bytes.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client did not send all data in time")
        return self._stream.recv(left)

    def _read_request(self) -> Request:
        deadline = self._deadline()
        data = b""
        while True:
            chunk = self._recv(deadline)
            data += chunk
            request = parse_request(data)
            if request is not None:
                return request
            if not chunk:
                raise RefusedError("the request is incomplete")

    def _read_first(self, request: Request) -> bytes | None:
        """Return the first bytes to send to the server. Return None if the client's TLS hello is
        denied or incomplete.
        """
        check, destination = self._out.check, request.destination
        if not request.tunnel or not check.needs_hello(destination):
            return request.head + request.rest
        reader = HelloReader()
        deadline = self._deadline()
        chunk = request.rest or self._recv(deadline)
        while chunk:
            allowed = check.allows_hello(reader.feed(chunk), destination)
            if allowed is not None:
                return bytes(reader.data) if allowed else None
            chunk = self._recv(deadline)
        return None

    def _answer(self, status: str, text: str, fields: str = "") -> None:
        body = f"corral: {text}\n".encode("ascii", "backslashreplace")
        head = (
            f"HTTP/1.1 {status}\r\n{fields}Content-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._stream.send(head.encode("ascii") + body)
        self._stream.end()
        # Read and drop further data from the client. If data were left unread, the kernel would
        # send a reset, and the client could lose the answer that corral has just sent.
        deadline = self._deadline()
        while self._recv(deadline):
            pass
