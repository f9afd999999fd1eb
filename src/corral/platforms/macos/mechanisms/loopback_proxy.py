"""Let the target reach allowed hosts through a proxy on one loopback port.

Seatbelt allows only this port. corral opens it before the fork, because the target's profile and
environment contain the port number. The only host that a Seatbelt rule can name is `localhost`,
which means every address of this Mac. The rule therefore also allows the same port on ::1. corral
binds that port too, so that no other program can listen on it. corral itself does not listen on it,
so connections to it are refused.

Every process on the Mac can connect to the port. The proxy therefore requires a password, which the
target gets in its proxy variables. The password is generated when the step is applied, so the plan
does not contain it, and no command can print it.
"""

from __future__ import annotations

import _socket
import errno
import os
import sys

from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.denials.records import Denials
    from corral.network.http_proxy.server import HttpProxy
    from corral.plan.model import Plan, Results, Stage

LOOPBACK = "127.0.0.1"
BACKLOG = 128
USER = "corral"
MAX_TRIES = 16


@record
class LoopbackProxy:
    name = "loopback_proxy"
    allow: tuple[str, ...]
    stage: Stage = "supervisor"
    verify = unverified

    def describe(self) -> str:
        hosts = ", ".join(self.allow)
        return f"a proxy for {hosts} on one loopback port, which the proxy variables name"

    def apply(self, results: Results) -> None:
        results.add(ProxyPort(*_listen()))


class ProxyPort:
    """The proxy's port and password.

    The proxy accepts connections on `listener`. The socket `reserved` is bound to the same port on
    ::1, but does not listen.
    """

    def __init__(self, listener: _socket.socket, reserved: _socket.socket | None) -> None:
        self.listener = listener
        self.reserved = reserved
        self.number = int(listener.getsockname()[1])
        self.password = os.urandom(16).hex()

    def variables(self) -> dict[str, str]:
        """Return the target's proxy variables. Their names are also given in lower case, because
        curl ignores HTTP_PROXY.
        """
        proxy = f"http://{USER}:{self.password}@{LOOPBACK}:{self.number}"
        upper = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "ALL_PROXY": proxy, "NO_PROXY": ""}
        lower = {name.lower(): value for name, value in upper.items()}
        return {**upper, **lower, "NODE_USE_ENV_PROXY": "1"}

    def authorization(self) -> bytes:
        """Return the value of the header in which clients send the password (RFC 7617)."""
        import binascii

        return b"Basic " + binascii.b2a_base64(f"{USER}:{self.password}".encode(), newline=False)

    def serve(self, plan: Plan, denials: Denials) -> HttpProxy:
        """Start the proxy, which will close the listener when it ends. Call this only after the
        last fork: the proxy starts threads, and a process with threads must not fork.
        """
        import socket

        from corral.network.destinations import check_from_policy
        from corral.network.http_proxy.outbound import Outbound
        from corral.network.http_proxy.server import HttpProxy

        out = Outbound(check_from_policy(plan.allow, plan.admit, os.environ, denials))
        listener = socket.socket(fileno=self.listener.detach())
        return HttpProxy(listener, self.authorization(), out)

    def release(self) -> None:
        self.listener.close()
        if self.reserved is not None:
            self.reserved.close()


def _listen() -> tuple[_socket.socket, _socket.socket | None]:
    for _ in range(MAX_TRIES):
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        listener.bind((LOOPBACK, 0))
        try:
            reserved = _reserve(int(listener.getsockname()[1]))
        except OSError:
            listener.close()
            continue
        listener.listen(BACKLOG)
        return listener, reserved
    raise OSError(0, "every loopback port that corral tried is already in use at ::1")


def _reserve(port: int) -> _socket.socket | None:
    """Bind the port on ::1, so that no program can listen there. Return None if the Mac has no
    IPv6.
    """
    try:
        reserved = _socket.socket(_socket.AF_INET6, _socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        reserved.bind(("::1", port))
    except OSError as error:
        reserved.close()
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return reserved
