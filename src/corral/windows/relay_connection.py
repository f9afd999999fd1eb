"""One connection through the relay: its request, the checks, and then bytes both ways."""

from __future__ import annotations

from corral.network.tls import HelloReader
from corral.windows import relay_shim
from corral.windows.relay_request import RefusedError, Request, read_request, written

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from corral.windows.relay import Relay
    from corral.windows.relay_shim import Stream


class Connection:
    """`run` returns when it is over; OSError if the stream or the server broke off. `served`: it
    came to a server.
    """

    def __init__(self, relay: Relay, stream: Stream) -> None:
        self.served = False
        self._relay = relay
        self._stream = stream

    def run(self) -> None:
        try:
            request = self._request()
        except RefusedError as error:
            self._say(400, "Bad Request", str(error))
            return
        if not self._relay.allows(request):
            self._say(403, "Forbidden", f"{request.host}:{request.port} is not in network.allow")
            return
        try:
            server = self._relay.dial(request)
        except (OSError, ValueError):
            self._relay.count(request.host, failed=True)
            self._say(502, "Bad Gateway", f"{request.host} cannot be reached")
            return
        with server:
            self._pass_on(request, server)

    def _pass_on(self, request: Request, server: socket.socket) -> None:
        if request.tunnel:
            self._stream.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        first = self._first(request)
        if first is None:
            self._relay.count(request.host, failed=True)
            self._stream.reset()
            return
        self.served = True
        splice = relay_shim.Splice(server, self._stream)
        try:
            server.sendall(first)
            splice.run()
        finally:
            self._relay.count(
                request.host, failed=False, up=len(first) + splice.up, down=splice.down
            )

    def _request(self) -> Request:
        data = b""
        while True:
            chunk = self._stream.recv(self._relay.timing.head)
            data += chunk
            request = read_request(data)
            if request is not None:
                return request
            if not chunk:
                raise RefusedError("the request ends in its middle")

    def _first(self, request: Request) -> bytes | None:
        """What the server gets first; None if a TLS client says that it wants somebody else."""
        if not request.tunnel or request.port not in self._relay.tls_ports:
            return request.head + request.rest
        reader = HelloReader()
        chunk = request.rest or self._stream.recv(self._relay.timing.head)
        while chunk:
            hello = reader.feed(chunk)
            if hello.state == "malformed":
                self._deny_hello("something that cannot be read", "", request)
                return None
            if hello.state == "name":
                if self._relay.rules.allows_name(hello.name, request.port) is None:
                    self._deny_hello(hello.name, written(hello.name, request.port), request)
                    return None
                return bytes(reader.data)
            if hello.state != "incomplete":
                return bytes(reader.data)
            chunk = self._stream.recv(self._relay.timing.head)
        return None

    def _deny_hello(self, wanted: str, allow: str, request: Request) -> None:
        self._relay.deny("sni", wanted, allow=allow, why=f"connected to {request.host}")

    def _say(self, status: int, reason: str, text: str) -> None:
        body = f"corral: {text}\n".encode("ascii", "backslashreplace")
        head = (
            f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._stream.send(head.encode("ascii") + body)
        self._stream.end()
        # The rest of what the client says is read and dropped: a reset could overtake the answer.
        while self._stream.recv(self._relay.timing.head):
            pass
