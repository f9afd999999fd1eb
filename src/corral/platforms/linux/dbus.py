"""Call systemd over D-Bus, following version 0.43 of the D-Bus specification.

corral does not use a library, because importing one would take longer than the whole start of a
sandbox. All input is checked: lengths, zero padding, UTF-8 and nesting.
"""

from __future__ import annotations

import os
import struct
import sys
import time

from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self, TypeAlias

    Value: TypeAlias = "int | float | str | Variant | Sequence[Value]"

NUMBERS = {
    "y": "B", "b": "I", "n": "h", "q": "H", "i": "i", "u": "I", "x": "q", "t": "Q", "d": "d",
}  # fmt: skip
ALIGNMENT = {
    **{code: struct.calcsize(f"={number}") for code, number in NUMBERS.items()},
    **dict.fromkeys("soa", 4),
    **dict.fromkeys("gv", 1),
    **dict.fromkeys("({", 8),
}
CLOSING = {"(": ")", "{": "}"}
MAX_DEPTH = 32
"""Maximum nesting of arrays and structs; the specification allows 32 of each."""
MAX_MESSAGE = 1 << 20
"""The largest message that is accepted, in bytes. systemd's answers have a few hundred bytes."""

CALL, RETURN, ERROR, SIGNAL = 1, 2, 3, 4
NO_AUTO_START = 2
"""A flag that tells the bus not to start the called service."""
FIELDS = {1: "path", 2: "interface", 3: "member", 4: "error", 5: "reply_to"}
FIELDS |= {6: "destination", 7: "sender", 8: "signature"}
KINDS = {"path": "o", "signature": "g", "reply_to": "u"}
ORDERS = {ord("l"): "<", ord("B"): ">"}
FIXED = 16
DRIVER = "org.freedesktop.DBus"
DRIVER_PATH = "/org/freedesktop/DBus"


class ProtocolError(OSError):
    def __init__(self, words: str) -> None:
        super().__init__(71, words)  # EPROTO


class CallError(OSError):
    """The called service answered with an error. `name` is the error's D-Bus name."""

    def __init__(self, name: str, words: str) -> None:
        super().__init__(0, f"{name}: {words}" if words else name)
        self.name = name


@record
class Variant:
    signature: str
    value: Value


@record
class Message:
    kind: int
    serial: int = 0
    flags: int = 0
    path: str = ""
    interface: str = ""
    member: str = ""
    error: str = ""
    reply_to: int = 0
    destination: str = ""
    sender: str = ""
    signature: str = ""
    body: tuple[Value, ...] = ()


def split(signature: str) -> list[str]:
    """Split a signature into complete types, such as `s` and `a(st)`."""
    if len(signature) > 255:
        raise ProtocolError("a signature is longer than 255 bytes")
    found: list[str] = []
    at = 0
    while at < len(signature):
        end = _end_of_type(signature, at, 0)
        found.append(signature[at:end])
        at = end
    return found


def _end_of_type(signature: str, at: int, depth: int) -> int:
    code = signature[at : at + 1]
    if depth > MAX_DEPTH or code not in ALIGNMENT:
        raise ProtocolError(f"invalid signature: {signature!r}")
    if code == "a":
        return _end_of_type(signature, at + 1, depth + 1)
    if code not in CLOSING:
        return at + 1
    inner = at + 1
    count = 0
    while signature[inner : inner + 1] != CLOSING[code]:
        inner = _end_of_type(signature, inner, depth + 1)
        count += 1
    pair = count == 2 and at > 0 and signature[at - 1] == "a" and signature[at + 1] not in "a({v"
    if not count or (code == "{" and not pair):
        raise ProtocolError(f"invalid signature: {signature!r}")
    return inner + 1


def marshal(signature: str, values: Sequence[Value]) -> bytes:
    """Encode values as a little-endian message body. Raise ValueError for a wrong type."""
    out = bytearray()
    try:
        for kind, value in zip(split(signature), values, strict=True):
            _put(out, kind, value)
    except (struct.error, AttributeError, TypeError) as error:
        raise ValueError(f"{signature}: {error}") from error
    return bytes(out)


def _put(out: bytearray, kind: str, value: Value) -> None:
    code = kind[0]
    _pad(out, ALIGNMENT[code])
    if code in NUMBERS:
        number = bool(value) if code == "b" else value
        out += struct.pack(f"<{NUMBERS[code]}", number)
    elif code in "sog":
        raw = value.encode()  # type: ignore[union-attr] # another type is a caller's mistake
        if b"\0" in raw:
            raise ValueError(f"a string contains a zero byte: {value!r}")
        out += struct.pack("<B" if code == "g" else "<I", len(raw)) + raw + b"\0"
    elif code == "v":
        _put(out, "g", value.signature)  # type: ignore[union-attr]
        (inner,) = split(value.signature)  # type: ignore[union-attr]
        _put(out, inner, value.value)  # type: ignore[union-attr]
    elif code == "a":
        _put_array(out, kind[1:], value)  # type: ignore[arg-type]
    else:
        for inner, item in zip(split_fields(kind), value, strict=True):  # type: ignore[arg-type]
            _put(out, inner, item)


def split_fields(kind: str) -> list[str]:
    return split(kind[1:-1])


def _put_array(out: bytearray, kind: str, values: Sequence[Value]) -> None:
    length_at = len(out)
    out += bytes(4)
    _pad(out, ALIGNMENT[kind[0]])
    start = len(out)  # the length of an array does not include the padding before its first element
    for value in values:
        _put(out, kind, value)
    struct.pack_into("<I", out, length_at, len(out) - start)


def _pad(out: bytearray, alignment: int) -> None:
    out += bytes(-len(out) % alignment)


class Reader:
    def __init__(self, data: bytes, order: str, at: int = 0) -> None:
        self.data = data
        self.order = order
        self.at = at

    def values(self, signature: str) -> tuple[Value, ...]:
        return tuple(self.value(kind, 0) for kind in split(signature))

    def value(self, kind: str, depth: int) -> Value:
        code = kind[0]
        if depth > 2 * MAX_DEPTH:
            raise ProtocolError("values nest too deeply")
        self.align(ALIGNMENT[code])
        if code in NUMBERS:
            return self._boolean() if code == "b" else self.number(NUMBERS[code])
        if code in "sog":
            return self._text("B" if code == "g" else "I")
        if code == "v":
            signature = self._text("B")
            kinds = split(signature)
            if len(kinds) != 1:
                raise ProtocolError(f"a variant must have exactly one type, not {signature!r}")
            return Variant(signature=signature, value=self.value(kinds[0], depth + 1))
        if code == "a":
            return self._array(kind[1:], depth)
        return tuple(self.value(inner, depth + 1) for inner in split_fields(kind))

    def align(self, alignment: int) -> None:
        if any(self._take(-self.at % alignment)):
            raise ProtocolError("the padding is not zero")

    def number(self, form: str) -> int:
        raw = self._take(struct.calcsize(f"={form}"))
        found: int = struct.unpack(f"{self.order}{form}", raw)[0]
        return found

    def _boolean(self) -> bool:
        found = self.number("I")
        if found > 1:
            raise ProtocolError(f"a boolean has the value {found}")
        return bool(found)

    def _text(self, form: str) -> str:
        raw = self._take(self.number(form))
        if self._take(1) != b"\0" or b"\0" in raw:
            raise ProtocolError("a string does not end where its length says")
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("a string is not UTF-8") from error

    def _array(self, kind: str, depth: int) -> list[Value]:
        length = self.number("I")
        self.align(ALIGNMENT[kind[0]])
        end = self.at + length
        if end > len(self.data):
            raise ProtocolError("an array is longer than its message")
        found: list[Value] = []
        while self.at < end:
            found.append(self.value(kind, depth + 1))
        if self.at != end:
            raise ProtocolError("an array does not end where its length says")
        return found

    def _take(self, count: int) -> bytes:
        taken = self.data[self.at : self.at + count]
        if len(taken) != count:
            raise ProtocolError("a message ends too early")
        self.at += count
        return taken


def encode(message: Message) -> bytes:
    body = marshal(message.signature, message.body)
    named = [(number, name, getattr(message, name)) for number, name in FIELDS.items()]
    fields = [
        (number, Variant(signature=KINDS.get(name, "s"), value=value))
        for number, name, value in named
        if value
    ]
    numbers = (ord("l"), message.kind, message.flags, 1, len(body), message.serial)
    head = bytearray(marshal("yyyyuua(yv)", (*numbers, fields)))
    _pad(head, 8)
    return bytes(head) + body


def length(start: bytes) -> int:
    """Return the total length of a message from its first 16 bytes."""
    order = ORDERS.get(start[0]) if len(start) >= FIXED else None
    if order is None or start[3] != 1:
        raise ProtocolError("these bytes are not a D-Bus message")
    body, fields = struct.unpack_from(f"{order}I4xI", start, 4)
    total: int = FIXED + fields + -fields % 8 + body
    if total > MAX_MESSAGE:
        raise ProtocolError(f"a message of {total} bytes is too long")
    return total


def decode(raw: bytes) -> Message:
    if length(raw) != len(raw):
        raise ProtocolError("the length of a message differs from the length in its header")
    reader = Reader(raw, ORDERS[raw[0]], at=1)
    kind, flags, _ = (reader.number("B") for _ in range(3))
    body_length, serial = (reader.number("I") for _ in range(2))
    named = _named(reader.value("a(yv)", 0))
    reader.align(8)
    if reader.at + body_length != len(raw):
        raise ProtocolError("the length of a body differs from the length in its header")
    inside = Reader(raw[reader.at :], reader.order)
    body = inside.values(str(named.get("signature", "")))
    if inside.at != len(inside.data):
        raise ProtocolError("a body contains more data than its signature describes")
    return Message(kind=kind, flags=flags, serial=serial, body=body, **named)  # type: ignore[arg-type]


def _named(fields: Value) -> dict[str, Value]:
    """Return header fields by name. Ignore unknown fields, as the specification requires."""
    named: dict[str, Value] = {}
    for number, variant in fields:  # type: ignore[union-attr,misc]
        name = FIELDS.get(number, "")  # type: ignore[arg-type]
        if name and isinstance(variant, Variant):
            expected = KINDS.get(name, "s")
            if variant.signature != expected:
                raise ProtocolError(
                    f"the header field {name} has the type {variant.signature}, not {expected}"
                )
            named[name] = variant.value
    return named


class Bus:
    """A connection to a bus. `timeout_seconds` is the time limit for all its calls together."""

    def __init__(self, path: str, timeout_seconds: float) -> None:
        import _socket  # importing `socket` would take longer than all calls together

        self._deadline = time.monotonic() + timeout_seconds
        self._serial = 0
        self._buffer = b""
        self._signals: list[Message] = []
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.name = ""
        try:
            self._set_timeout()
            self._socket.connect(path)
            self._authenticate()
            (self.name,) = self.driver("Hello")  # type: ignore[assignment]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def driver(self, member: str, signature: str = "", *arguments: Value) -> tuple[Value, ...]:
        """Call the bus daemon itself."""
        return self.call(DRIVER, DRIVER_PATH, DRIVER, member, signature, *arguments)

    def call(
        self,
        destination: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        *arguments: Value,
    ) -> tuple[Value, ...]:
        self._serial += 1
        request = Message(
            kind=CALL,
            serial=self._serial,
            flags=NO_AUTO_START,
            path=path,
            interface=interface,
            member=member,
            destination=destination,
            signature=signature,
            body=arguments,
        )
        self._set_timeout()
        self._socket.sendall(encode(request))
        return self._answer(self._serial)

    def _answer(self, serial: int) -> tuple[Value, ...]:
        while True:
            message = self._receive()
            if message.kind == SIGNAL:
                self._signals.append(message)
            elif message.kind in {RETURN, ERROR} and message.reply_to == serial:
                if message.kind == ERROR:
                    raise CallError(message.error, str(message.body[0]) if message.body else "")
                return message.body

    def wait(self, wanted: Callable[[Message], bool]) -> Message:
        """Return the first signal that `wanted` accepts, even if it arrived before this call."""
        while True:
            while self._signals:
                message = self._signals.pop(0)
                if wanted(message):
                    return message
            message = self._receive()
            if message.kind == SIGNAL:
                self._signals.append(message)

    def _authenticate(self) -> None:
        """Authenticate by uid (EXTERNAL). The bus asks the kernel whether the uid is true."""
        self._socket.sendall(
            b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n"
        )
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > 256:
                raise ProtocolError("the bus did not send a valid answer to AUTH")
            self._fill()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        if not line.startswith(b"OK ") or self._buffer:
            raise ProtocolError(f"the bus refused the login: {line[:80]!r}")
        self._socket.sendall(b"BEGIN\r\n")

    def _receive(self) -> Message:
        while len(self._buffer) < FIXED or len(self._buffer) < length(self._buffer):
            self._fill()
        end = length(self._buffer)
        raw, self._buffer = self._buffer[:end], self._buffer[end:]
        return decode(raw)

    def _fill(self) -> None:
        self._set_timeout()
        chunk = self._socket.recv(1 << 16)
        if not chunk:
            raise ConnectionResetError(104, "the bus closed the connection")
        self._buffer += chunk

    def _set_timeout(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(110, "the bus did not answer in time")
        self._socket.settimeout(left)
