"""What a client says to an HTTP proxy (RFC 9112 3.2): where it wants to go. Pure.

Two forms: `CONNECT host:port` for everything that is to pass untouched, and a request with a whole
`http://` URL. The latter is turned into the request that the server itself expects, with a Host
that cannot differ from the URL's, and `Connection: close`: the next request on the same connection
could be for another host, and nobody would look.
"""

from __future__ import annotations

from corral.network.addresses import read
from corral.network.rules import LAST_PORT, is_host_name
from corral.record import record
from corral.units import is_digits

LONGEST_HEAD = 1 << 14
TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
VERSIONS = (b"HTTP/1.1", b"HTTP/1.0")
PASSWORD = b"proxy-authorization"
# Of this connection and none of the server's business; Host is written anew.
DROPPED = frozenset({b"connection", b"proxy-connection", b"keep-alive", PASSWORD, b"host", b"te"})
WEB = 80


class RefusedError(ValueError):
    """Not a request that a proxy of ours understands; the text is for its client."""


@record
class Request:
    """`address` if the host is written as one. `head` goes to the server first, `rest` after it.

    `password` is what Proxy-Authorization says; it is for the proxy and never in `head`.
    """

    host: str
    port: int
    address: bytes | None
    tunnel: bool
    head: bytes = b""
    rest: bytes = b""
    password: bytes = b""


def read_request(data: bytes) -> Request | None:
    """The request at the beginning of `data`; None while it is incomplete."""
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        if len(data) > LONGEST_HEAD:
            raise RefusedError("the request's head is too long")
        return None
    lines = head.split(b"\r\n")
    words = lines[0].split(b" ")
    if len(head) > LONGEST_HEAD or any(byte in head for byte in (b"\0", b"\x7f")):
        raise RefusedError("the request's head cannot be read")
    if any(b"\n" in line or b"\r" in line for line in lines):
        raise RefusedError("a line of the request ends in two ways")
    if (
        len(words) != 3
        or words[2] not in VERSIONS
        or not words[0]
        or not TOKEN.issuperset(words[0])
    ):
        raise RefusedError("not a request to a proxy")
    fields = _fields(lines[1:])
    method, target, version = words
    if method == b"CONNECT":
        host, port, address = split_authority(target, None)
        return Request(
            host=host,
            port=port,
            address=address,
            tunnel=True,
            rest=rest,
            password=_password(fields),
        )
    authority, path = _split_url(target)
    host, port, address = split_authority(authority, WEB)
    shown = authority.lower()
    kept = [line for name, line in fields if name not in DROPPED]
    first = b" ".join((method, path, version))
    sent = (first, b"Host: " + shown, *kept, b"Connection: close", b"", b"")
    return Request(
        host=host,
        port=port,
        address=address,
        tunnel=False,
        head=b"\r\n".join(sent),
        rest=rest,
        password=_password(fields),
    )


def _is_token(text: bytes) -> bool:
    return bool(text) and TOKEN.issuperset(text)


def _fields(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    for line in lines:
        name, colon, _ = line.partition(b":")
        if not colon or not _is_token(name):
            raise RefusedError("a header of the request cannot be read")
        found.append((name.lower(), line))
    return found


def _password(fields: list[tuple[bytes, bytes]]) -> bytes:
    found = [line.partition(b":")[2].strip(b" \t") for name, line in fields if name == PASSWORD]
    if len(found) > 1:
        raise RefusedError("two passwords")
    return found[0] if found else b""


def _split_url(target: bytes) -> tuple[bytes, bytes]:
    if target[:7].lower() != b"http://":
        raise RefusedError("only http:// URLs and CONNECT are understood")
    rest = target[7:]
    end = min((at for at in map(rest.find, (b"/", b"?")) if at >= 0), default=len(rest))
    path = rest[end:]
    return rest[:end], path if path.startswith(b"/") else b"/" + path


def split_authority(text: bytes, default: int | None) -> tuple[str, int, bytes | None]:
    """(host in lower case, port, address if it is one)."""
    try:
        written = text.decode("ascii").lower()
    except UnicodeDecodeError:
        raise RefusedError("the host is not ASCII") from None
    if written.startswith("["):
        host, bracket, port = written[1:].partition("]")
        if not bracket or (port and not port.startswith(":")) or ":" not in host:
            raise RefusedError("the host cannot be read")
        port = port[1:] if port else ""
    else:
        host, _, port = written.partition(":")
    if not port and default is None:
        raise RefusedError("there is no port")
    return host, _port(port) if port else default or WEB, _address(host)


def _port(text: str) -> int:
    if not is_digits(text) or len(text) > 5 or not 0 < int(text) <= LAST_PORT:
        raise RefusedError("the port cannot be read")
    return int(text)


def _address(host: str) -> bytes | None:
    try:
        return read(host)
    except ValueError:
        pass
    if not is_host_name(host):
        raise RefusedError("the host cannot be read")
    return None
