"""Publish the target's ports on the host (`network.listen`).

corral binds the ports on the host's loopback, or on all addresses if the user chose that. It does
this before anything starts. To connect to the target, corral needs sockets in the target's network
namespace. So a small process joins the target's user and network namespaces, makes sockets there,
and sends them to the supervisor. The process does not join the target's other namespaces, so the
target cannot see it.
"""

from __future__ import annotations

import os
import socket
import sys

from corral.abi import linux as abi
from corral.abi import linux_sockets
from corral.abi.signal_numbers import SIGKILL
from corral.platforms import steps
from corral.platforms.linux import init
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from corral.plan.model import Results, Stage

LOOPBACK, ANY = "127.0.0.1", "0.0.0.0"  # noqa: S104 - only if the user asks
BACKLOG = 128


@record
class HostSockets:
    """The listening sockets on the host by port, until a service takes them over."""

    fds: dict[int, int]

    def take(self) -> dict[int, int]:
        taken = dict(self.fds)
        self.fds.clear()
        return taken

    def release(self) -> None:
        for fd in self.take().values():
            os.close(fd)


@record
class PublishedPorts:
    name = "published_ports"
    ports: tuple[int, ...]
    everywhere: bool = False
    stage: Stage = "supervisor"
    verify = unverified

    def describe(self) -> str:
        return f"listen on {describe_place(self.everywhere)}: {', '.join(map(str, self.ports))}"

    def apply(self, results: Results) -> None:
        sockets = HostSockets(fds={})
        results.add(sockets)
        for port in self.ports:
            sockets.fds[port] = bind_port(port, everywhere=self.everywhere)
            linux_sockets.listen(sockets.fds[port], BACKLOG)


@record
class NamespaceHandles:
    """Descriptors of the target's user and network namespaces, until a `Dialer` takes them over."""

    fds: list[int]

    def release(self) -> None:
        while self.fds:
            os.close(self.fds.pop())


@record
class OpenNamespaces:
    """Opens init's namespaces while init waits.

    Once init has dropped its privileges, the supervisor can no longer open them.
    """

    name = "namespace_handles"
    stage: Stage = "after_clone"
    verify = unverified

    def describe(self) -> str:
        return "open the target's network namespace, to reach its ports"

    def apply(self, results: Results) -> None:
        handles = NamespaceHandles(fds=[])
        results.add(handles)
        for kind in ("user", "net"):
            path = f"/proc/{results.get(init.InitProcess).pid}/ns/{kind}"
            handles.fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def describe_place(everywhere: bool) -> str:  # noqa: FBT001 - the name of the field
    return "all addresses of the host" if everywhere else "the host's loopback"


def bind_port(port: int, *, everywhere: bool) -> int:
    address = ANY if everywhere else LOOPBACK
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
    except OSError as error:
        made.close()
        raise OSError(error.errno, error.strerror, f"{address}:{port}") from error
    return made.detach()


class Dialer:
    """Starts a process that makes sockets in the target's network namespace."""

    def __init__(self, handles: NamespaceHandles) -> None:
        self._channel, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            _make_sockets(theirs, *handles.fds)
        theirs.close()
        handles.release()

    def make(self) -> int:
        """Return a new non-blocking stream socket. Raise OSError if the process has ended."""
        self._channel.send(b"S")
        found = socket.recv_fds(self._channel, 1, 1)[1]
        if not found:
            raise OSError(0, "the dialer sent no socket")
        return found[0]

    def close(self) -> None:
        self._channel.close()
        os.waitpid(self._pid, 0)


def _make_sockets(channel: socket.socket, user: int, net: int) -> NoReturn:
    try:
        abi.prctl(abi.PR_SET_PDEATHSIG, SIGKILL)
        steps.keep_only({channel.fileno(), user, net})
        abi.setns(user, abi.CLONE_NEWUSER)
        abi.setns(net, abi.CLONE_NEWNET)
        abi.prctl(abi.PR_SET_DUMPABLE, 0)
        while channel.recv(1):
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
                made.setblocking(False)
                socket.send_fds(channel, [b"S"], [made.fileno()])
    finally:
        os._exit(0)
