"""The host's own way out: an HTTP proxy that is asked to CONNECT (RFC 9110 9.3.6).

Behind such a proxy the host often cannot look up names at all, so the proxy gets the name, and
the address guard sees addresses only where the policy has them. Names are checked as always.
"""

from __future__ import annotations

from corral.network.addresses import Network, read, read_network
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES = ("https_proxy", "HTTPS_PROXY")
EXCEPTIONS = ("no_proxy", "NO_PROXY")
LONGEST_REPLY = 1 << 14
DEFAULT_PORT = 80
DIRECT = frozenset({"localhost", "127.0.0.1", "::1"})
"""The proxy's own loopback is never meant."""


@record
class Proxy:
    """`authorization` is the value of Proxy-Authorization; `suffixes` and `networks` go direct."""

    host: str
    port: int
    authorization: str = ""
    suffixes: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    nobody: bool = False

    def is_for(self, host: str) -> bool:
        """Does a connection to this name or address go through it?"""
        if self.nobody or host in DIRECT:
            return False
        if host[-1:].isdigit() or ":" in host:
            try:
                address = read(host)
            except ValueError:
                pass
            else:
                return not any(address in network for network in self.networks)
        return not any(host == item or host.endswith(f".{item}") for item in self.suffixes)


def proxy_of(environment: Mapping[str, str]) -> Proxy | None:
    """The proxy that the user's environment names; ValueError if it is one we cannot talk to."""
    text = next((environment[name] for name in VARIABLES if environment.get(name)), "")
    if not text:
        return None
    scheme, mark, rest = text.rpartition("://")
    if mark and scheme.lower() != "http":
        raise ValueError(f"only http:// proxies can be used, not {scheme[:20]!r}")
    user, _, place = rest.partition("/")[0].rpartition("@")
    host, port = _split(place)
    if not host or not host.isascii() or not host.isprintable() or " " in host:
        raise ValueError("the proxy has no host name")
    exceptions = next((environment[name] for name in EXCEPTIONS if environment.get(name)), "")
    suffixes, networks = _exceptions(exceptions)
    return Proxy(
        host=host.lower(),
        port=port,
        authorization=_authorization(user),
        suffixes=suffixes,
        networks=networks,
        nobody="*" in suffixes,
    )


def _split(place: str) -> tuple[str, int]:
    host, bracket, rest = place.removeprefix("[").partition("]")
    if not bracket:
        host, _, rest = place.partition(":")
    port = rest.removeprefix(":")
    if not port:
        return host, DEFAULT_PORT
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ValueError("the proxy's port is not a number")
    return host, int(port)


def _exceptions(text: str) -> tuple[tuple[str, ...], tuple[Network, ...]]:
    """As curl reads it: a name stands for itself and all below it, with or without a dot."""
    suffixes: list[str] = []
    networks: list[Network] = []
    for item in text.replace(" ", ",").split(","):
        name = item.strip().lower()
        try:
            networks.append(read_network(name.removeprefix("[").removesuffix("]")))
        except ValueError:
            name = name.rpartition(":")[0] if name.count(":") == 1 else name
            name = name if name == "*" else name.removeprefix("*").strip(".")
            suffixes += [name] if name else []
    return tuple(suffixes), tuple(networks)


def _authorization(user: str) -> str:
    if not user:
        return ""
    import binascii

    raw = bytearray()
    parts = user.encode("utf-8", "surrogateescape").split(b"%")
    raw += parts[0]
    try:
        for part in parts[1:]:
            raw += binascii.unhexlify(part[:2]) + part[2:]
    except binascii.Error:
        raise ValueError("a % in the proxy's user or password is written %25") from None
    return "Basic " + binascii.b2a_base64(bytes(raw), newline=False).decode("ascii")


def connect_request(proxy: Proxy, host: str, port: int) -> bytes:
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    return "\r\n".join((*lines, "", "")).encode("ascii")


def read_reply(data: bytes) -> tuple[int, bytes] | None:
    """The status, and what the server already said after it; None while it is incomplete."""
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        if len(data) > LONGEST_REPLY or not data.startswith(b"HTTP/1."[: len(data)]):
            raise ValueError("not an answer of a proxy")
        return None
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError("not an answer of a proxy")
    return int(words[1][:3]), rest
