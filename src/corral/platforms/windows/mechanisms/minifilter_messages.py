"""Encode and decode the messages of the minifilter driver. This code is pure.

Messages are little-endian with C's natural alignment. The size of a structure is padded to a
multiple of its widest member's size, and the driver refuses messages without this padding. Strings
are arrays of UTF-16 units that end with a NUL. A message consists of one of Windows' two headers,
then the driver's own header, then the body (`id @8` is a field at offset 8):

    FILTER_MESSAGE_HEADER (16)  u32 size of the reply, u64 id @8       before the driver's messages
    FILTER_REPLY_HEADER (16)    i32 status, u64 id @8                  before corral's answers
    header (16)                 u32 type, u32 size of header and body, u64 request id
"""

import struct
from typing import Literal

from corral.record import record

Decision = Literal["allow", "deny"]

PORT = "\\AgentshPort"
VERSION = 0x00010000
PATH_UNITS = 520
VALUE_UNITS = 256

PING, CHECK_FILE, CHECK_REGISTRY = 0, 1, 2
PROCESS_CREATED, PROCESS_TERMINATED = 3, 4
PONG = 50
REGISTER_SESSION, UNREGISTER_SESSION = 100, 101
SET_CONFIG, EXCLUDE_PROCESS = 104, 107
NOTICES = frozenset({PROCESS_CREATED, PROCESS_TERMINATED})
"""The driver expects no answer to these messages."""

FILE_CREATE, FILE_READ, FILE_WRITE, FILE_DELETE, FILE_RENAME = 1, 2, 3, 4, 5
KEY_CREATE, VALUE_SET, KEY_DELETE, VALUE_DELETE, KEY_RENAME, VALUE_QUERY = 1, 2, 3, 4, 5, 6
DECISIONS: tuple[Decision, ...] = ("allow", "deny")
FAIL_CLOSED = 1

CONTEXT = struct.Struct("<II")
MESSAGE_HEADER = struct.Struct("<I4xQ")
REPLY_HEADER = struct.Struct("<i4xQ")
HEADER = struct.Struct("<IIQ")
PING_BODY = struct.Struct("<I4xQ")
SESSION_BODY = struct.Struct(f"<QI{2 * PATH_UNITS}s4x")
TOKEN_BODY = struct.Struct("<Q")
CONFIG_BODY = struct.Struct("<IIIII4x")
EXCLUDE_BODY = struct.Struct("<I4x")
FILE_BODY = struct.Struct(f"<QIIIII{2 * PATH_UNITS}s{2 * PATH_UNITS}s4x")
REGISTRY_BODY = struct.Struct(f"<QIIIII{2 * PATH_UNITS}s{2 * VALUE_UNITS}s4x")
RESPONSE_BODY = struct.Struct("<II")
MAX_MESSAGE = 1 << 14
"""The number of bytes to receive. It exceeds the size of any valid message from the driver, so that
corral can receive and deny a message that is too long.
"""


@record
class Identity:
    """The fields of a message that its answer has to repeat."""

    message: int  # the id in FILTER_MESSAGE_HEADER, which Windows' filter manager chooses
    kind: int
    request: int


class MalformedError(ValueError):
    """The message is invalid. If `identity` is known, corral answers with a denial."""

    def __init__(self, text: str, identity: Identity | None = None) -> None:
        super().__init__(text)
        self.identity = identity


@record
class Ping:
    version: int
    time: int


@record
class FileCheck:
    token: int
    process: int
    thread: int
    operation: int
    disposition: int
    access: int
    path: str
    destination: str


@record
class RegistryCheck:
    token: int
    process: int
    thread: int
    operation: int
    value_type: int
    data_size: int
    key: str
    value: str


@record
class Notice:
    """A message that a process started or ended. The driver expects no answer."""


BODIES: dict[int, tuple[struct.Struct, type[Ping | FileCheck | RegistryCheck]]] = {
    PING: (PING_BODY, Ping),
    CHECK_FILE: (FILE_BODY, FileCheck),
    CHECK_REGISTRY: (REGISTRY_BODY, RegistryCheck),
}


def context(process: int) -> bytes:
    return CONTEXT.pack(VERSION, process)


def register_session(request: int, token: int, root: int, workspace: str) -> bytes:
    return _message(
        REGISTER_SESSION, request, SESSION_BODY.pack(token, root, _units(workspace, PATH_UNITS))
    )


def unregister_session(request: int, token: int) -> bytes:
    return _message(UNREGISTER_SESSION, request, TOKEN_BODY.pack(token))


def set_config(
    request: int, *, timeout_ms: int, failures: int, cache_entries: int, cache_ms: int
) -> bytes:
    """Return the message that sets the driver's time limit and cache, and makes the driver deny
    each operation that corral does not answer in time.
    """
    body = CONFIG_BODY.pack(FAIL_CLOSED, timeout_ms, failures, cache_entries, cache_ms)
    return _message(SET_CONFIG, request, body)


def exclude_process(request: int, process: int) -> bytes:
    return _message(EXCLUDE_PROCESS, request, EXCLUDE_BODY.pack(process))


def read_request(data: bytes) -> tuple[Identity, Ping | FileCheck | RegistryCheck | Notice]:
    """Parse a message. Raise MalformedError if it is invalid. The error contains the identity of
    the message if corral can answer with a denial.
    """
    if len(data) < MESSAGE_HEADER.size + HEADER.size:
        raise MalformedError("truncated header", _known(data))
    _reply_size, message = MESSAGE_HEADER.unpack_from(data)
    kind, size, request = HEADER.unpack_from(data, MESSAGE_HEADER.size)
    identity = Identity(message=message, kind=kind, request=request)
    body = data[MESSAGE_HEADER.size + HEADER.size :]
    if size != HEADER.size + len(body):
        raise MalformedError(f"the message states the wrong size: {size} bytes", identity)
    try:
        return identity, _read_body(kind, body)
    except (struct.error, ValueError) as error:
        raise MalformedError(str(error), identity) from error


def _read_body(kind: int, body: bytes) -> Ping | FileCheck | RegistryCheck | Notice:
    if kind in NOTICES:
        return Notice()
    if kind not in BODIES:
        raise ValueError(f"unknown message type {kind}")
    form, request = BODIES[kind]
    values = [_text(part) if isinstance(part, bytes) else part for part in form.unpack(body)]
    return request(**dict(zip(request.__match_args__, values, strict=True)))


def pong(identity: Identity, time: int) -> bytes:
    return _reply(identity, _message(PONG, identity.request, PING_BODY.pack(VERSION, time)))


def response(identity: Identity, decision: Decision, cache_ms: int) -> bytes:
    body = RESPONSE_BODY.pack(DECISIONS.index(decision), cache_ms)
    return _reply(identity, _message(identity.kind, identity.request, body))


def _reply(identity: Identity, message: bytes) -> bytes:
    return REPLY_HEADER.pack(0, identity.message) + message


def _message(kind: int, request: int, body: bytes) -> bytes:
    return HEADER.pack(kind, HEADER.size + len(body), request) + body


def _known(data: bytes) -> Identity | None:
    """Return an identity with which corral can deny a truncated message, or None if even its first
    header is truncated. The type and the request id are unknown, so they are CHECK_FILE and 0.
    """
    if len(data) < MESSAGE_HEADER.size:
        return None
    return Identity(message=MESSAGE_HEADER.unpack_from(data)[1], kind=CHECK_FILE, request=0)


def _units(text: str, count: int) -> bytes:
    raw = text.encode("utf-16-le", "surrogatepass")
    if "\0" in text or len(raw) > 2 * (count - 1):
        raise ValueError(f"a string is longer than {count - 1} characters, or contains a NUL")
    return raw.ljust(2 * count, b"\0")


def _text(raw: bytes) -> str:
    """Decode a string up to its NUL. Refuse a string that has no NUL, or whose NUL is in the last
    place of the array, because such a string may have been cut off.
    """
    end = next((at for at in range(0, len(raw), 2) if raw[at : at + 2] == b"\0\0"), -1)
    if end < 0 or end == len(raw) - 2:
        raise ValueError("a string has no NUL at its end")
    return raw[:end].decode("utf-16-le", "surrogatepass")
