"""Parse requests to an HTTP proxy (RFC 9112 3.2) strictly, and find their destination.

After `CONNECT host:port` all bytes are copied unchanged. A request with an absolute `http://` URL
is rewritten for the server: its first line keeps only the path of the URL, and the URL's host
replaces the request's Host field. The proxy also adds `Connection: close`, because a second request
on the connection would not be checked.
"""

from corral.network.addresses import address_or_none
from corral.network.destinations import Destination, address_destination
from corral.network.rules import MAX_PORT, is_host_name
from corral.record import record
from corral.units import is_digits

MAX_HEAD_BYTES = 1 << 14
TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
VERSIONS = (b"HTTP/1.1", b"HTTP/1.0")
PASSWORD = b"proxy-authorization"
# Header fields that are not sent to the server. Host is dropped because it is replaced, and the
# others because they are meant for the proxy.
DROPPED = frozenset({b"connection", b"proxy-connection", b"keep-alive", PASSWORD, b"host", b"te"})
DEFAULT_PORT = 80


class RefusedError(ValueError):
    """Raised if a request is invalid. The text of the error is sent to the client."""


@record
class Request:
    """A request. `tunnel` is true for CONNECT. `head` and then `rest` are sent to the server.
    `password` is the value of Proxy-Authorization, which is always left out of `head`.
    """

    destination: Destination
    tunnel: bool
    head: bytes = b""
    rest: bytes = b""
    password: bytes = b""


def parse_request(data: bytes) -> Request | None:
    """Return the request at the start of `data`, or None while the request is incomplete."""
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        if len(data) > MAX_HEAD_BYTES:
            raise RefusedError("the request's head is too long")
        return None
    lines = head.split(b"\r\n")
    words = lines[0].split(b" ")
    if len(head) > MAX_HEAD_BYTES or any(byte in head for byte in (b"\0", b"\x7f")):
        raise RefusedError("the request's head cannot be read")
    if any(b"\n" in line or b"\r" in line for line in lines):
        raise RefusedError("a line of the request has a stray CR or LF")
    if len(words) != 3 or words[2] not in VERSIONS or not _is_token(words[0]):
        raise RefusedError("this is not a request to a proxy")
    fields = _parse_fields(lines[1:])
    password = _find_password(fields)
    method, target, version = words
    if method == b"CONNECT":
        destination = parse_authority(target, None)
        return Request(destination=destination, tunnel=True, rest=rest, password=password)
    authority, path = _split_url(target)
    destination = parse_authority(authority, DEFAULT_PORT)
    kept = [line for name, line in fields if name not in DROPPED]
    first = b" ".join((method, path, version))
    sent = (first, b"Host: " + authority.lower(), *kept, b"Connection: close", b"", b"")
    head = b"\r\n".join(sent)
    return Request(destination=destination, tunnel=False, head=head, rest=rest, password=password)


def _is_token(text: bytes) -> bool:
    return bool(text) and TOKEN.issuperset(text)


def _parse_fields(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    for line in lines:
        name, colon, _ = line.partition(b":")
        if not colon or not _is_token(name):
            raise RefusedError("the request has a malformed header")
        found.append((name.lower(), line))
    return found


def _find_password(fields: list[tuple[bytes, bytes]]) -> bytes:
    found = [line.partition(b":")[2].strip(b" \t") for name, line in fields if name == PASSWORD]
    if len(found) > 1:
        raise RefusedError("the request has two passwords")
    return found[0] if found else b""


def _split_url(target: bytes) -> tuple[bytes, bytes]:
    if target[:7].lower() != b"http://":
        raise RefusedError("only http:// URLs and CONNECT are supported")
    rest = target[7:]
    end = min((at for at in map(rest.find, (b"/", b"?")) if at >= 0), default=len(rest))
    path = rest[end:]
    return rest[:end], path if path.startswith(b"/") else b"/" + path


def parse_authority(text: bytes, default_port: int | None) -> Destination:
    try:
        written = text.decode("ascii").lower()
    except UnicodeDecodeError:
        raise RefusedError("the host is not ASCII") from None
    if written.startswith("["):
        host, bracket, port = written[1:].partition("]")
        if not bracket or (port and not port.startswith(":")) or ":" not in host:
            raise RefusedError("the IPv6 address in brackets is malformed")
        port = port[1:] if port else ""
    else:
        host, _, port = written.partition(":")
    if not port and default_port is None:
        raise RefusedError("the port is missing")
    number = _parse_port(port) if port else default_port or DEFAULT_PORT
    address = address_or_none(host)
    if address is not None:
        return address_destination(address, number)
    if not is_host_name(host):
        raise RefusedError("the host name is malformed")
    return Destination(host=host, port=number)


def _parse_port(text: str) -> int:
    if not is_digits(text) or len(text) > 5 or not 0 < int(text) <= MAX_PORT:
        raise RefusedError("the port is not a number from 1 to 65535")
    return int(text)
