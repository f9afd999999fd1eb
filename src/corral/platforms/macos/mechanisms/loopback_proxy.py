"""Named hosts: one loopback port that Seatbelt leaves open, where corral's own proxy listens.

Opened before the target is forked, since its profile and its environment have the port. Seatbelt
knows no host but `localhost`, which is every address of this Mac, so the same port of ::1 is kept
from others too. Every process of the Mac can connect to the port: the password in the proxy
variables is what tells the target from them. It is made here, at birth, so that no plan has it and
nothing can print it.
"""

from __future__ import annotations

import _socket
import errno
import os
import sys

from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.denials.records import Denials
    from corral.network.http_proxy.server import HttpProxy
    from corral.plan.model import Place, Plan
    from corral.platforms.steps import Scene

LOOPBACK = "127.0.0.1"
WAITING = 128
USER = "corral"
TRIES = 16


@record
class Door:
    allow: tuple[str, ...]
    place: Place = "supervisor"

    def describe(self) -> str:
        hosts = ", ".join(self.allow)
        return f"door: a proxy on one loopback port, named by the proxy variables, for {hosts}"


def apply(step: Door, scene: Scene) -> None:  # noqa: ARG001 - who may pass is asked at the door
    listener, beside = _listen()
    scene.port = int(listener.getsockname()[1])
    scene.password = os.urandom(16).hex()
    scene.variables = variables(scene.port, scene.password)
    scene.doors = (listener.detach(),)
    scene.kept = () if beside is None else (beside.detach(),)


def _listen() -> tuple[_socket.socket, _socket.socket | None]:
    for _ in range(TRIES):
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        listener.bind((LOOPBACK, 0))
        try:
            beside = _kept(int(listener.getsockname()[1]))
        except OSError:
            listener.close()
            continue
        listener.listen(WAITING)
        return listener, beside
    raise OSError(0, "every port that was tried is in use at ::1")


def _kept(port: int) -> _socket.socket | None:
    """Bound and never listening: whoever connects is refused. None where there is no IPv6."""
    try:
        beside = _socket.socket(_socket.AF_INET6, _socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        beside.bind(("::1", port))
    except OSError as error:
        beside.close()
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return beside


def variables(port: int, password: str) -> tuple[tuple[str, str], ...]:
    """For the target, in both spellings: curl knows the lower case only, others the upper."""
    proxy = f"http://{USER}:{password}@{LOOPBACK}:{port}"
    found = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "ALL_PROXY": proxy, "NO_PROXY": ""}
    lower = {name.lower(): value for name, value in found.items()}
    return (*found.items(), *lower.items(), ("NODE_USE_ENV_PROXY", "1"))


def authorization(password: str) -> bytes:
    """What clients make of it (RFC 7617)."""
    import binascii

    return b"Basic " + binascii.b2a_base64(f"{USER}:{password}".encode(), newline=False)


def serve(plan: Plan, listener: int, password: str, denials: Denials | None) -> HttpProxy:
    """Once the target is born: this starts threads."""
    import socket

    from corral.network.destinations import check_from_policy
    from corral.network.http_proxy.outbound import Outbound
    from corral.network.http_proxy.server import HttpProxy

    out = Outbound(check_from_policy(plan.allow, plan.admit, os.environ, denials))
    return HttpProxy(socket.socket(fileno=listener), authorization(password), out)
