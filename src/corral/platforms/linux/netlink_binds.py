"""Bind netlink sockets for a target without namespaces, which is not allowed to call `bind` itself.

To list the network interfaces, the C library has to bind a netlink socket (NETLINK_ROUTE). But when
the target calls `bind`, the seccomp filter cannot tell a netlink socket from a unix socket. The
target does have unix sockets, in pairs, and without a network namespace it shares the abstract
names of unix sockets with the host. If it could bind one end of a pair, it could take a name that a
program on the host needs.

So the kernel never executes the target's own `bind`. The supervisor binds a new netlink socket, and
the target gets this socket in place of its own.
"""

from __future__ import annotations

import _socket
import errno
import os
import struct
import sys
import time

from corral.network.budgets import RateLimit
from corral.platforms.linux import calling_thread
from corral.platforms.linux.notified_calls import Decision, Given

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.abi.linux_notifications import Notification
    from corral.platforms.linux.calling_thread import CallingThread

AF_NETLINK, NETLINK_ROUTE = 16, 0
ADDRESS = struct.Struct("=HHII")
"""struct sockaddr_nl: the family, two unused bytes, the port and the multicast groups."""
BURST, RATE = 256, 256
"""The rate limit for answering calls: a burst of BURST calls, and then RATE calls per second.
Further calls wait, which does not cost CPU time.
"""


class NetlinkBinds:
    """Answers `bind` calls. `uid` and `gid` are the target's ids on the host."""

    def __init__(self, uid: int, gid: int) -> None:
        self._ids = calling_thread.find_ids(uid, gid)
        self._rate_limit = RateLimit(time.monotonic, burst=BURST, rate=RATE)

    def pause_seconds(self) -> float:
        return self._rate_limit.pause_seconds()

    def decide(self, _call: str, request: Notification) -> Decision:
        self._rate_limit.use()
        fd, pointer, size = request.arguments[:3]
        try:
            thread = calling_thread.CallingThread(request, self._ids)
            if calling_thread.to_int(size) != ADDRESS.size:
                raise PermissionError(errno.EPERM, "not a netlink address")
            return bind_netlink(thread, fd, thread.read(pointer, ADDRESS.size))
        except OSError as error:
            return Decision(verdict="answer", error=error.errno or errno.EPERM)


def bind_netlink(thread: CallingThread, fd: int, raw: bytes) -> Decision:
    """Return a decision that replaces the thread's socket `fd` with a new netlink socket.

    The new socket is bound to the address `raw`. Raise OSError (EPERM) if `fd` is not a netlink
    socket, or if `raw` is not a netlink address.
    """
    is_netlink = thread.protocol(fd) == "NETLINK"
    thread.check()
    family, _, port, groups = ADDRESS.unpack_from(raw.ljust(ADDRESS.size, b"\0"))
    if not is_netlink or family != AF_NETLINK:
        raise PermissionError(errno.EPERM, "not a netlink socket")
    own = _socket.socket(AF_NETLINK, _socket.SOCK_RAW, NETLINK_ROUTE)
    try:
        own.bind((port, groups))
        return replace_socket(thread, fd, own)
    finally:
        own.close()


def replace_socket(thread: CallingThread, fd: int, own: _socket.socket) -> Decision:
    """Return a decision that gives the target a duplicate of the supervisor's socket `own`.

    The duplicate takes the place of the target's descriptor `fd`.
    """
    flags = thread.flags(fd)
    os.set_blocking(own.fileno(), not flags & os.O_NONBLOCK)
    given = Given(
        fd=os.dup(own.fileno()), flags=flags & os.O_CLOEXEC, number=calling_thread.to_int(fd)
    )
    return Decision(verdict="answer", error=0, given=given)
