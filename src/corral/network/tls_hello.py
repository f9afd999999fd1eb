"""Read the server name in a TLS ClientHello (RFC 8446 4.1.2, RFC 6066 3) without a TLS library.

The parser is strict: it treats a hello as malformed if two parsers could interpret it differently.
The name is only the client's claim. The server at this address may serve other names too.
"""

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    State = Literal["incomplete", "not TLS", "malformed", "no name", "name"]

RECORD_TYPES = range(20, 25)
CLIENT_HELLO = 1
SERVER_NAME = 0
HOST_NAME = 0
RECORD_HEADER = 5
MAX_RECORD_BYTES = 1 << 14
MAX_HELLO_BYTES = 1 << 15
"""Larger hellos are refused. A real hello is only a few kilobytes long, even with post-quantum keys
and session tickets.
"""
MAX_PREFIX_BYTES = 2 * MAX_HELLO_BYTES
"""The maximum number of bytes that are read before the hello has to be complete. It is larger than
MAX_HELLO_BYTES, because a hello may be split into many small records, each with a header.
"""
MAX_NAME_LENGTH = 255


@record
class Hello:
    state: "State"
    name: str = ""


class _MalformedError(Exception):
    pass


class _Reader:
    """Reads the fields of a complete message. A message that ends too early is malformed."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self.data):
            raise _MalformedError
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, length: int) -> int:
        return int.from_bytes(self.take(length), "big")

    def vector(self, length: int) -> bytes:
        return self.take(self.number(length))

    @property
    def left(self) -> int:
        return len(self.data) - self.at


class HelloReader:
    """Reads the first bytes of a connection as they arrive, until the hello is complete or
    malformed.

    `data` contains all bytes so far. Each record is parsed only once, so that a target cannot keep
    corral busy by sending many small records.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self._message = bytearray()
        self._at = 0

    def feed(self, chunk: bytes) -> Hello:
        self.data += chunk
        if not self.data:
            return Hello(state="incomplete")
        if self.data[0] not in RECORD_TYPES:
            return _classify_other(self.data)
        try:
            message = self._next_records()
            if message is None:
                too_long = len(self.data) >= MAX_PREFIX_BYTES
                return Hello(state="malformed" if too_long else "incomplete")
            name = _server_name(message)
        except _MalformedError:
            return Hello(state="malformed")
        return Hello(state="no name") if name is None else Hello(state="name", name=name)

    def _next_records(self) -> bytes | None:
        """Return the ClientHello without its header, or None while more records are needed."""
        while (content := self._next_record()) is not None:
            self._message += content
            if self._message[0] != CLIENT_HELLO:
                raise _MalformedError
            if len(self._message) < 4:
                continue
            size = int.from_bytes(self._message[1:4], "big")
            if size > MAX_HELLO_BYTES:
                raise _MalformedError
            if len(self._message) >= 4 + size:
                return bytes(self._message[4 : 4 + size])
        return None

    def _next_record(self) -> bytearray | None:
        head = bytes(self.data[self._at : self._at + RECORD_HEADER])
        if head[:1] not in {b"", b"\x16"} or head[1:2] not in {b"", b"\x03"}:
            raise _MalformedError
        if len(head) < RECORD_HEADER:
            return None
        length = int.from_bytes(head[3:], "big")
        if not 0 < length <= MAX_RECORD_BYTES:
            raise _MalformedError
        start = self._at + RECORD_HEADER
        if len(self.data) < start + length:
            return None
        self._at = start + length
        return self.data[start : self._at]


def _classify_other(data: bytearray) -> Hello:
    """Classify bytes that are not the start of a TLS record. Call an SSL 2 hello malformed, so that
    corral denies it. It must not pass as "not TLS", because old servers accept it as a TLS hello.
    """
    if not data[0] & 0x80:
        return Hello(state="not TLS")
    if len(data) < 3:
        return Hello(state="incomplete")
    return Hello(state="malformed" if data[2] == CLIENT_HELLO else "not TLS")


def _server_name(message: bytes) -> str | None:
    hello = _Reader(message)
    if hello.number(1) != 3:  # the major version, which is always 3 in TLS
        raise _MalformedError
    hello.take(1 + 32)  # minor version, random
    if len(hello.vector(1)) > 32:  # session ID
        raise _MalformedError
    suites = len(hello.vector(2))
    if suites < 2 or suites % 2 or not hello.vector(1):  # compression methods
        raise _MalformedError
    if not hello.left:
        return None
    extensions = _Reader(hello.vector(2))
    if hello.left:
        raise _MalformedError
    found: str | None = None
    seen: set[int] = set()
    while extensions.left:
        kind = extensions.number(2)
        content = extensions.vector(2)
        if kind in seen:
            raise _MalformedError
        seen.add(kind)
        if kind == SERVER_NAME:
            found = _host_name(content)
    return found


def _host_name(content: bytes) -> str:
    """Return the name in a server name extension. An extension with several names is malformed,
    because different parsers choose different names.
    """
    extension = _Reader(content)
    names = _Reader(extension.vector(2))
    kind = names.number(1)
    name = names.vector(2)
    plain = name.isascii() and b"\0" not in name
    if extension.left or names.left or kind != HOST_NAME or not plain:
        raise _MalformedError
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise _MalformedError
    return name.decode("ascii").lower()
