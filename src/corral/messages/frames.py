"""Split a stream into lines and read JSON-RPC messages from them, strictly and in bounded memory.

In MCP's stdio transport, each line is one message or one array of messages. A line is refused if
two JSON parsers could interpret it differently, for example because a name occurs twice, or because
it contains NaN, a carriage return or bytes that are not UTF-8.
"""

import json
import re
from collections.abc import Collection, Iterator
from typing import Literal

from corral.record import record

Message = dict[str, object]
Kind = Literal["request", "notification", "answer"]
IdKey = tuple[type, object]

KEPT_BYTES = 512
"""The number of bytes that corral keeps from the start and from the end of an overlong line to find
the message's id.
"""
MAX_ID_LENGTH = 1024
MAX_VALUES = 300_000
"""The maximum number of values in a message. It limits the memory, because a value that takes only
2 bytes in a line can take 200 bytes in memory.
"""
ENVELOPE = frozenset(("jsonrpc", "id", "method", "params", "result", "error"))
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
ID = rb'"id"\s*:\s*(-?\d{1,18}|"(?:[^"\\]|\\.){0,200}")'
VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
ID_AT_START = re.compile(rb"\s*\{\s*(?:%b\s*,\s*)?%b\s*," % (VERSION, ID))
ID_AT_END = re.compile(rb",\s*%b\s*(?:,\s*%b\s*)?\}\s*$" % (ID, VERSION))


@record
class TooLong:
    """The start and the end of a line that was too long to keep. `size` is its length in bytes."""

    size: int
    start: bytes
    end: bytes

    def find_id(self) -> object:
        """Return the message's id, or None. Look for it only at the start and the end of the
        message, where SDKs write it.
        """
        found = ID_AT_START.match(self.start) or ID_AT_END.search(self.end)
        try:
            return json.loads(found[1]) if found else None
        except ValueError:
            return None


class FrameReader:
    """Splits a stream at line feeds. A frame is one line, as bytes, with its line feed."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._clear()

    def feed(self, chunk: bytes) -> Iterator[bytes | TooLong]:
        """Yield the frames that end in `chunk`. Keep the start of the next frame."""
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            self._add(piece)
            yield self._take(b"\n")
        self._add(rest)

    def end(self) -> bytes | TooLong | None:
        """Return the bytes after the last line feed of the stream, or None if there are none."""
        return self._take(b"") if self._size else None

    def _clear(self) -> None:
        self._buffer = bytearray()
        self._size = 0
        self._end = b""

    def _add(self, piece: bytes) -> None:
        was_too_long = self._size > self._max_bytes
        self._size += len(piece)
        if self._size <= self._max_bytes:
            self._buffer += piece
            return
        before = self._end if was_too_long else bytes(self._buffer[-KEPT_BYTES:])
        self._end = (before + piece[-KEPT_BYTES:])[-KEPT_BYTES:]
        del self._buffer[KEPT_BYTES:]
        self._buffer += piece[: KEPT_BYTES - len(self._buffer)]

    def _take(self, line_feed: bytes) -> bytes | TooLong:
        frame: bytes | TooLong = bytes(self._buffer) + line_feed
        if self._size > self._max_bytes:
            frame = TooLong(size=self._size, start=bytes(self._buffer), end=self._end)
        self._clear()
        return frame


def decode(frame: bytes) -> object:
    """Return the value in a frame. Raise ValueError if parsers could interpret it differently."""
    line = frame.rstrip(b"\r\n")
    if b"\r" in line:
        raise ValueError(
            "the message has a carriage return, which some parsers treat as a line end"
        )
    if _count_values(line) > MAX_VALUES:
        outside = STRING.sub(b"", line, count=MAX_VALUES)
        if _count_values(outside) > MAX_VALUES:
            raise ValueError(f"the message has more than {MAX_VALUES} values")
    try:
        found: object = DECODER.decode(line.decode())
    except RecursionError:
        raise ValueError("the message is nested too deeply") from None
    return found


def _count_values(line: bytes) -> int:
    return line.count(b",") + line.count(b"[") + line.count(b"{")


def encode(value: object) -> bytes:
    """Return a value as a frame. Raise ValueError for NaN and infinity."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def kind_of(message: object) -> Kind | None:
    """Return the kind of a message, or None if it is not a message or could be of two kinds."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return None
    if has_lookalikes(message, ENVELOPE):
        return None
    answers = ("result" in message) + ("error" in message)
    if "method" not in message:
        return "answer" if answers == 1 else None
    if answers or not isinstance(message["method"], str):
        return None
    return "request" if "id" in message else "notification"


def as_table(value: object) -> Message:
    return value if isinstance(value, dict) else {}


def has_lookalikes(value: Message, known: Collection[str]) -> bool:
    """Return whether a key of `value` differs from a known key only in case, which some parsers
    ignore.
    """
    strange = [key.casefold() for key in value if key not in known]
    return bool(strange) and not {key.casefold() for key in known}.isdisjoint(strange)


def id_key(value: object) -> IdKey | None:
    """Return an id together with its type, because in Python `1 == 1.0 == True`. Return None for an
    invalid id.
    """
    if type(value) is int or (isinstance(value, str) and len(value) <= MAX_ID_LENGTH):
        return type(value), value
    return None


def _unique(pairs: list[tuple[str, object]]) -> Message:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return made


def _refuse_constant(name: str) -> object:
    raise ValueError(f"JSON does not allow {name}")


DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
