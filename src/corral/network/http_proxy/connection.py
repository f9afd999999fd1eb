"""One connection to an HTTP proxy of corral's: its request, the checks, then bytes both ways."""

from __future__ import annotations

import hmac
import time

from corral.network.http_proxy.request import RefusedError, Request, read_request
from corral.network.rules import is_host_name, written
from corral.network.tls_hello import HelloReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Protocol

    from corral.network.http_proxy.outbound import Outbound

    class Stream(Protocol):
        """The client's end. All raise OSError once it is lost, `recv` TimeoutError too."""

        def recv(self, timeout: float, /) -> bytes: ...
        def send(self, data: bytes, /) -> None: ...
        def end(self) -> None: ...
        def reset(self) -> None: ...

    class Splice(Protocol):
        """Bytes both ways until both have ended; `up` and `down` count them."""

        @property
        def up(self) -> int: ...
        @property
        def down(self) -> int: ...
        def run(self) -> None: ...


class Connection:
    """`run` returns when it is over; OSError if the stream or the server broke off. `served`: it
    came to a server.

    `password` is the value of Proxy-Authorization that is asked for; empty where nobody else can
    connect.
    """

    def __init__(
        self,
        out: Outbound,
        stream: Stream,
        splice: Callable[[socket.socket], Splice],
        *,
        password: bytes = b"",
    ) -> None:
        self.served = False
        self._out = out
        self._stream = stream
        self._splice = splice
        self._password = password

    def run(self) -> None:
        try:
            request = self._request()
        except RefusedError as error:
            self._say("400 Bad Request", str(error))
            return
        # Before anything else: who does not belong to the run learns nothing of its policy.
        if not hmac.compare_digest(request.password if self._password else b"", self._password):
            self._say(
                "407 Proxy Authentication Required",
                "this proxy is for one run of corral, whose proxy variables have the password",
                'Proxy-Authenticate: Basic realm="corral"\r\n',
            )
            return
        if not self._out.allows(request):
            self._say("403 Forbidden", f"{request.host}:{request.port} is not in network.allow")
            return
        try:
            server = self._out.dial(request)
        except (OSError, ValueError):
            self._out.count(request.host, failed=True)
            self._say("502 Bad Gateway", f"{request.host} cannot be reached")
            return
        with server:
            self._pass_on(request, server)

    def _pass_on(self, request: Request, server: socket.socket) -> None:
        if request.tunnel:
            self._stream.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        first = self._first(request)
        if first is None:
            self._out.count(request.host, failed=True)
            self._stream.reset()
            return
        self.served = True
        splice = self._splice(server)
        try:
            server.settimeout(self._out.timing.head)
            server.sendall(first)
            server.settimeout(None)
            splice.run()
        finally:
            self._out.count(request.host, failed=False, up=len(first) + splice.up, down=splice.down)

    def _recv(self, deadline: float) -> bytes:
        """One deadline for all of it: who sends byte by byte has no more time than others."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("not all came")
        return self._stream.recv(left)

    def _request(self) -> Request:
        deadline = time.monotonic() + self._out.timing.head
        data = b""
        while True:
            chunk = self._recv(deadline)
            data += chunk
            request = read_request(data)
            if request is not None:
                return request
            if not chunk:
                raise RefusedError("the request ends in its middle")

    def _first(self, request: Request) -> bytes | None:
        """What the server gets first; None if a TLS client says that it wants somebody else."""
        if not request.tunnel or request.port not in self._out.tls_ports:
            return request.head + request.rest
        reader = HelloReader()
        deadline = time.monotonic() + self._out.timing.head
        chunk = request.rest or self._recv(deadline)
        while chunk:
            hello = reader.feed(chunk)
            if hello.state == "malformed":
                self._deny_hello("something that cannot be read", request)
                return None
            if hello.state == "name":
                if self._out.rules.allows_name(hello.name, request.port) is None:
                    self._deny_hello(hello.name, request)
                    return None
                return bytes(reader.data)
            if hello.state != "incomplete":
                return bytes(reader.data)
            chunk = self._recv(deadline)
        return None

    def _deny_hello(self, wanted: str, request: Request) -> None:
        allow = written(wanted, request.port) if is_host_name(wanted) else ""
        self._out.deny("sni", wanted, allow=allow, why=f"connected to {request.host}")

    def _say(self, status: str, text: str, fields: str = "") -> None:
        body = f"corral: {text}\n".encode("ascii", "backslashreplace")
        head = (
            f"HTTP/1.1 {status}\r\n{fields}Content-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._stream.send(head.encode("ascii") + body)
        self._stream.end()
        # The rest of what the client says is read and dropped: a reset could overtake the answer.
        deadline = time.monotonic() + self._out.timing.head
        while self._recv(deadline):
            pass
