"""`network.listen`: ports of the target that the host's loopback reaches.

The ports are bound outside before anything starts, on loopback only. A socket belongs to the
network namespace that it is made in, whoever connects it, so a small process joins the target's
user and network namespaces (and no other: the target cannot see it) and makes sockets there.
"""

from __future__ import annotations

import array
import os
import socket
import sys

from corral.abi import linux as abi
from corral.abi.signal_numbers import SIGKILL
from corral.platforms import steps
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from corral.plan.model import Place
    from corral.platforms.steps import Scene

LOOPBACK = "127.0.0.1"
BACKLOG = 128


@record
class HostPorts:
    ports: tuple[int, ...]
    place: Place = "supervisor"

    def describe(self) -> str:
        return f"listen on the host's loopback: {', '.join(map(str, self.ports))}"


@record
class Handles:
    """While init waits it can still be looked into; once it has locked itself up it cannot."""

    place: Place = "beside"

    def describe(self) -> str:
        return "hold the target's network namespace, to reach its ports"


def apply(step: HostPorts | Handles, scene: Scene) -> None:
    match step:
        case HostPorts():
            for port in step.ports:
                scene.inlets[port] = _bind(port)
        case Handles():
            flags = os.O_RDONLY | os.O_CLOEXEC
            names = (f"/proc/{scene.pid}/ns/{kind}" for kind in ("user", "net"))
            scene.handles = tuple(os.open(name, flags) for name in names)


def _bind(port: int) -> int:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((LOOPBACK, port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise OSError(error.errno, error.strerror, f"{LOOPBACK}:{port}") from error
    return made.detach()


class Dialer:
    """Makes sockets in the target's network namespace."""

    def __init__(self, user: int, net: int) -> None:
        self._channel, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            _serve(theirs, user, net)
        theirs.close()
        os.close(user)
        os.close(net)

    def make(self) -> int:
        """A stream socket that does not block, in there; OSError when the dialer is gone."""
        self._channel.send(b"S")
        _, ancillary, _, _ = self._channel.recvmsg(1, socket.CMSG_SPACE(4))
        found = array.array("i")
        for _, _, raw in ancillary:
            found.frombytes(raw[:4])
        if not found:
            raise OSError(0, "no socket came")
        return found[0]

    def close(self) -> None:
        self._channel.close()
        os.waitpid(self._pid, 0)


def _serve(channel: socket.socket, user: int, net: int) -> NoReturn:
    try:
        abi.prctl(abi.PR_SET_PDEATHSIG, SIGKILL)
        steps.keep_only({channel.fileno(), user, net})
        abi.setns(user, abi.CLONE_NEWUSER)
        abi.setns(net, abi.CLONE_NEWNET)
        abi.prctl(abi.PR_SET_DUMPABLE, 0)
        while channel.recv(1):
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
                made.setblocking(False)
                descriptors = array.array("i", [made.fileno()])
                channel.sendmsg([b"S"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    finally:
        os._exit(0)
