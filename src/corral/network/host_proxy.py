"""Connect through the host's own HTTP proxy with CONNECT (RFC 9110 9.3.6).

A host behind such a proxy often cannot look up names itself, so the proxy looks them up. A name
still has to be allowed by the policy. But corral does not learn to which address the proxy
connects for a name. So the address guard can check a destination only if the target names an
address instead of a host name.
"""

from __future__ import annotations

from corral.network.addresses import Network, address_or_none, parse_network
from corral.network.rules import format_host_port
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


VARIABLES = ("https_proxy", "HTTPS_PROXY")
EXCEPTIONS = ("no_proxy", "NO_PROXY")
MAX_REPLY_BYTES = 1 << 14
DEFAULT_PORT = 80
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Connections to these hosts never go through the proxy, because the proxy would connect to its own
machine instead of this one.
"""


@record
class Proxy:
    """The host's proxy, and the hosts that are reached without it.

    `authorization` is the value of the header field Proxy-Authorization. The names in `suffixes`,
    all names below them, and the addresses in `networks` are reached directly. The suffix `*` means
    all names and addresses.
    """

    host: str
    port: int
    authorization: str = ""
    suffixes: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    def is_used_for(self, host: str) -> bool:
        if "*" in self.suffixes or host in LOOPBACK:
            return False
        address = address_or_none(host)
        if address is not None:
            return not any(address in network for network in self.networks)
        return not any(host == item or host.endswith(f".{item}") for item in self.suffixes)


def proxy_from_environment(environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy that the environment variable `https_proxy` or `HTTPS_PROXY` names, or None.
    Raise ValueError if corral cannot use the proxy.
    """
    text = next((environment[name] for name in VARIABLES if environment.get(name)), "")
    if not text:
        return None
    scheme, mark, rest = text.rpartition("://")
    if mark and scheme.lower() != "http":
        raise ValueError(f"only http:// proxies can be used, not {scheme[:20]!r}")
    user, _, location = rest.partition("/")[0].rpartition("@")
    host, port = _split_location(location)
    if not host or not host.isascii() or not host.isprintable() or " " in host:
        raise ValueError("the proxy's URL has no valid host name")
    exceptions = next((environment[name] for name in EXCEPTIONS if environment.get(name)), "")
    suffixes, networks = _parse_exceptions(exceptions)
    return Proxy(
        host=host.lower(),
        port=port,
        authorization=_authorization(user),
        suffixes=suffixes,
        networks=networks,
    )


def _split_location(location: str) -> tuple[str, int]:
    host, bracket, rest = location.removeprefix("[").partition("]")
    if not bracket:
        host, _, rest = location.partition(":")
    port = rest.removeprefix(":")
    if not port:
        return host, DEFAULT_PORT
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ValueError("the proxy's port is not a number from 1 to 65535")
    return host, int(port)


def _parse_exceptions(text: str) -> tuple[tuple[str, ...], tuple[Network, ...]]:
    """Parse NO_PROXY as curl does: each name, with or without a leading dot, includes its
    subdomains.
    """
    suffixes: list[str] = []
    networks: list[Network] = []
    for item in text.replace(" ", ",").split(","):
        name = item.strip().lower()
        try:
            networks.append(parse_network(name.removeprefix("[").removesuffix("]")))
        except ValueError:
            name = name.rpartition(":")[0] if name.count(":") == 1 else name
            name = name if name == "*" else name.removeprefix("*").strip(".")
            suffixes += [name] if name else []
    return tuple(suffixes), tuple(networks)


def _authorization(user: str) -> str:
    if not user:
        return ""
    import binascii

    first, *escaped = user.encode("utf-8", "surrogateescape").split(b"%")
    try:
        raw = first + b"".join(binascii.unhexlify(part[:2]) + part[2:] for part in escaped)
    except binascii.Error:
        raise ValueError("write %25 for a % in the proxy's user name or password") from None
    return "Basic " + binascii.b2a_base64(raw, newline=False).decode("ascii")


def build_connect_request(proxy: Proxy, host: str, port: int) -> bytes:
    target = format_host_port(host, port)
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    return "\r\n".join((*lines, "", "")).encode("ascii")


def parse_connect_reply(data: bytes) -> bytes | None:
    """Return the bytes after the proxy's reply, or None while the reply is incomplete.

    Raise ValueError if the proxy refuses the connection, or if its reply is not HTTP.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        if len(data) > MAX_REPLY_BYTES or not data.startswith(b"HTTP/1."[: len(data)]):
            raise ValueError("the reply of the proxy is not HTTP")
        return None
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError("the reply of the proxy is not HTTP")
    if not 200 <= int(words[1][:3]) < 300:
        raise ValueError(f"the proxy refused the connection (status {int(words[1][:3])})")
    return rest
