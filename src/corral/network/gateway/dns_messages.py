"""Parse DNS queries strictly, and build answers (RFC 1035, 6891 for EDNS, 9460 for HTTPS and SVCB).

A query has one question and at most one OPT record. Compression pointers are refused, because they
could form loops, and because a query contains no earlier name to point to.
"""

from __future__ import annotations

import struct

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


A, PTR, AAAA, OPT, SVCB, HTTPS, ANY = 1, 12, 28, 41, 64, 65, 255
IN = 1
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, BADVERS = 0, 1, 2, 3, 4, 16

HEADER = struct.Struct("!HHHHHH")
RESPONSE, RECURSION_DESIRED, RECURSION_AVAILABLE = 0x8000, 0x0100, 0x0080
OPCODE = 0x7800
MAX_NAME_LENGTH = 255
MAX_LABEL_LENGTH = 63
MAX_QUERY_BYTES = 4096
"""The largest query that is parsed. A question and its OPT record with cookies and padding need
only a few hundred bytes.
"""
PAYLOAD = 1232
"""The largest UDP message that corral says it can receive. A message of this size is not fragmented
on the way (DNS flag day 2020).
"""
QUESTION_POINTER = b"\xc0\x0c"
TTL = 300
PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")


class MalformedError(ValueError):
    """Raised if a query cannot be parsed. `code` is the response code for the answer."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@record
class Query:
    """A parsed query. `name` is in lower case, and all its characters are escaped except letters,
    digits, `-`, `_` and the dots between labels.
    """

    id: int
    flags: int
    name: str
    kind: int
    question: bytes
    edns: int | None = None


@record
class Answer:
    kind: int
    data: bytes


def parse_query(data: bytes) -> Query:
    if len(data) > MAX_QUERY_BYTES:
        raise MalformedError(FORMERR, "the message is too long for a query")
    if len(data) < HEADER.size:
        raise MalformedError(FORMERR, "the message is shorter than a header")
    number, flags, questions, answers, authorities, additional = HEADER.unpack_from(data)
    if flags & OPCODE:
        raise MalformedError(NOTIMP, "the message is not a standard query")
    if (questions, answers, authorities) != (1, 0, 0) or additional > 1:
        raise MalformedError(FORMERR, "the message is not a single question")
    name, end = parse_name(data, HEADER.size)
    if len(data) < end + 4:
        raise MalformedError(FORMERR, "the question is truncated")
    kind, space = struct.unpack_from("!HH", data, end)
    if space != IN:
        raise MalformedError(NOTIMP, "the question is not of the internet class")
    version, after = parse_opt(data, end + 4) if additional else (None, end + 4)
    if after != len(data):
        raise MalformedError(FORMERR, "there are bytes after the last record")
    question = data[HEADER.size : end + 4]
    return Query(id=number, flags=flags, name=name, kind=kind, question=question, edns=version)


def parse_name(data: bytes, start: int) -> tuple[str, int]:
    """Return the name at `start`, and the position after it. Refuse a compressed name."""
    labels: list[str] = []
    at = start
    while True:
        if at >= len(data):
            raise MalformedError(FORMERR, "the name is truncated")
        length = data[at]
        at += 1
        if length == 0:
            return ".".join(labels), at
        if length > MAX_LABEL_LENGTH or at + length - start > MAX_NAME_LENGTH - 1:
            raise MalformedError(FORMERR, "the name has a pointer or is too long")
        if at + length > len(data):
            raise MalformedError(FORMERR, "the name is truncated")
        labels.append(escape_label(data[at : at + length]))
        at += length


def escape_label(label: bytes) -> str:
    """Escape a label as zone files do, so that a dot inside a label does not look like the end of
    the label.
    """
    return "".join(chr(byte) if byte in PLAIN else f"\\{byte:03d}" for byte in label.lower())


def parse_opt(data: bytes, start: int) -> tuple[int, int]:
    """Parse an OPT record. Return its EDNS version, and the position after the record."""
    if len(data) < start + 11:
        raise MalformedError(FORMERR, "the additional record is truncated")
    root, kind, _payload, ttl, length = struct.unpack_from("!BHHIH", data, start)
    if root or kind != OPT:
        raise MalformedError(FORMERR, "the additional record is not OPT")
    return ttl >> 16 & 0xFF, start + 11 + length


def build_answer(query: Query, code: int, answers: Sequence[Answer] = ()) -> bytes:
    flags = RESPONSE | RECURSION_AVAILABLE | query.flags & RECURSION_DESIRED | code & 0xF
    additional = 0 if query.edns is None else 1
    parts = [HEADER.pack(query.id, flags, 1, len(answers), 0, additional), query.question]
    for item in answers:
        head = struct.pack("!HHIH", item.kind, IN, TTL, len(item.data))
        parts += [QUESTION_POINTER, head, item.data]
    if additional:
        parts.append(struct.pack("!BHHIH", 0, OPT, PAYLOAD, code >> 4 << 24, 0))
    return b"".join(parts)


def build_error(data: bytes, code: int) -> bytes | None:
    """Return an error as the answer to a malformed query, or None if `data` is not a query."""
    if len(data) < HEADER.size:
        return None
    number, flags = struct.unpack_from("!HH", data)
    if flags & RESPONSE:
        return None
    kept = flags & (OPCODE | RECURSION_DESIRED)
    return HEADER.pack(number, RESPONSE | RECURSION_AVAILABLE | kept | code & 0xF, 0, 0, 0, 0)


def build_name(name: str) -> bytes:
    labels = [label.encode("ascii") for label in name.split(".")] if name else []
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


class Framing:
    """Splits a TCP stream into DNS messages. Two bytes before each message contain its length."""

    def __init__(self) -> None:
        self.buffer = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the messages that are now complete. Raise MalformedError if one is too long."""
        self.buffer += chunk
        found: list[bytes] = []
        while len(self.buffer) >= 2:
            length = int.from_bytes(self.buffer[:2], "big")
            if length > MAX_QUERY_BYTES:
                raise MalformedError(FORMERR, "the message is too long for a query")
            if len(self.buffer) < 2 + length:
                break
            found.append(self.buffer[2 : 2 + length])
            self.buffer = self.buffer[2 + length :]
        return found


def frame_message(message: bytes) -> bytes:
    return len(message).to_bytes(2, "big") + message
