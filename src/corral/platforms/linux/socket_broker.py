"""Connect, bind and listen for a target without a network namespace, by answering its socket calls.

The target can create TCP sockets, but cannot connect them itself. The supervisor copies the
requested address once, because the target could change it afterwards, and asks the gateway whether
the address is allowed. If it is, the supervisor takes the target's socket with pidfd_getfd and
connects it to its own loopback listener. It gives the other end of this connection, the accepted
socket, to the gateway. So the target's TCP sockets are only ever connected to corral. If
pidfd_getfd does not work, a new, connected socket replaces the target's own socket.

Instead of a datagram socket the target gets one end of a pair of unix sockets, which ignores
addresses. At the other end corral answers name lookups. The resolver in the target's C library
checks that an answer comes from the server that it asked, but a pair of sockets does not report a
sender. So the broker writes the server's address into the caller's memory.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import sys
import time

from corral.abi import linux as abi
from corral.abi import linux_sockets as sockets
from corral.network.addresses import unmap
from corral.network.budgets import RateLimit
from corral.platforms.linux import calling_thread, netlink_binds
from corral.platforms.linux.mechanisms import published_ports
from corral.platforms.linux.notified_calls import UNKNOWN, Decision, Given
from corral.record import replace
from corral.safe_text import printable

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.abi.linux_notifications import Notification
    from corral.denials.records import Denials
    from corral.network.destinations import Destination
    from corral.network.gateway.gateway import Gateway
    from corral.platforms.linux.calling_thread import CallingThread
    from corral.platforms.linux.mechanisms.brokered_sockets import PreparedSockets

    Call = Callable[["SocketBroker", CallingThread, tuple[int, ...]], Decision]

DONE = Decision(verdict="answer", error=0)
CONTINUED = Decision(verdict="continue")
MAX_ADDRESS = 128  # sizeof(struct sockaddr_storage)
BACKLOG, MAX_BACKLOG = 512, 4096
ACCEPT_SECONDS = 1.0
"""The maximum time to wait for a connection to the supervisor's own listener, which usually comes
at once.
"""
BURST, RATE = 4096, 4096
"""The rate limit for answering calls: a burst of BURST, and then RATE per second. A call in NAMES
counts as one, and every other call as COST. The gateway has its own, lower limit for refused
connections.
"""
COST = 2
MAX_PEERS = 4096
TCP_CLOSE = 7
MAX_DATAGRAM = 1 << 16
DNS_PORT = 53
LOOPBACK, LOOPBACK6 = bytes((127, 0, 0, 1)), bytes(15) + b"\1"
MAPPED = bytes(10) + b"\xff\xff"
ANY, ANY6 = bytes(4), bytes(16)
RESOLVER = sockets.inet_address(LOOPBACK, DNS_PORT)
HIDDEN = "the process hides its memory: PR_SET_DUMPABLE"
UNSPECIFIED = bytes(16)
"""The address of family AF_UNSPEC, which ends a connection."""
UNIX_KINDS = {"UNIX-STREAM": _socket.SOCK_STREAM, "UNIX": _socket.SOCK_SEQPACKET}


class DatagramSocket:
    """The socket pair that replaces a datagram socket.

    `peer` is the address to which the target has connected the socket.
    """

    def __init__(self, gateway: Gateway, forget: Callable[[], object], family: int) -> None:
        self.peer = RESOLVER
        self._family = family
        self._gateway = gateway
        self.closed = forget

    def is_resolver(self) -> bool:
        return is_resolver(*parse_address(self.peer))

    def own_address(self) -> bytes:
        """Return a loopback address of the peer's family, to report as the socket's address.

        If the target asked for an IPv6 socket, return an IPv4 address as a mapped IPv6 address.
        Otherwise glibc's getaddrinfo would abort the program.
        """
        if _family(self.peer) == _socket.AF_INET6:
            return LOOPBACK6
        return MAPPED + LOOPBACK if self._family == _socket.AF_INET6 else LOOPBACK

    def refuse(self) -> None:
        address, port = parse_address(self.peer)
        if address[0] != LOOPBACK[0] and address != LOOPBACK6:
            destination = self._gateway.names.destination(address, port)
            self._gateway.denials.add("udp", str(destination))


class SocketBroker:
    def __init__(self, gateway: Gateway, prepared: PreparedSockets, denials: Denials) -> None:
        self.gateway = gateway
        self._rate_limit = RateLimit(time.monotonic, burst=BURST, rate=RATE)
        self._prepared = prepared
        self._denials = denials
        self._ids = calling_thread.find_ids(prepared.step.uid, prepared.step.gid)
        self._listeners: dict[int, tuple[_socket.socket, tuple[str, int]]] = {}
        self._datagrams: dict[int, DatagramSocket] = {}
        self._peers: dict[int, bytes] = {}
        self._bound: dict[int, _socket.socket] = {}

    def pause_seconds(self) -> float:
        return max(self.gateway.pause_seconds(), self._rate_limit.pause_seconds())

    def decide(self, call: str, request: Notification) -> Decision:
        self._rate_limit.use(1 if call in NAMES else COST)
        try:
            thread = calling_thread.CallingThread(request, self._ids)
            return CALLS[call](self, thread, request.arguments)
        except OSError as error:
            if call in NAMES:
                return CONTINUED
            if isinstance(error, calling_thread.HiddenMemoryError):
                self._denials.add("address", UNKNOWN, why=HIDDEN)
            return _failed(error.errno)

    def close(self) -> None:
        for made in (*(one for one, _ in self._listeners.values()), *self._bound.values()):
            made.close()

    def _make_datagram_socket(self, _thread: CallingThread, arguments: tuple[int, ...]) -> Decision:
        """Make the socket pair that the target gets instead of a datagram socket.

        The filter has already checked the arguments of the target's call.
        """
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        inode = os.fstat(theirs.fileno()).st_ino
        pair = DatagramSocket(self.gateway, lambda: self._datagrams.pop(inode, None), arguments[0])
        kind = arguments[1]
        try:
            self.gateway.dns_server.add_pair(ours, pair)
            theirs.setblocking(not kind & _socket.SOCK_NONBLOCK)
        except OSError:
            theirs.close()
            raise
        self._datagrams[inode] = pair
        flags = os.O_CLOEXEC if kind & _socket.SOCK_CLOEXEC else 0
        return Decision(verdict="answer", error=0, given=Given(fd=theirs.detach(), flags=flags))

    def _find_pair(self, thread: CallingThread, fd: int) -> DatagramSocket | None:
        return self._datagrams.get(thread.inode(fd)) if self._datagrams else None

    def _connect(self, thread: CallingThread, arguments: tuple[int, ...]) -> Decision:
        fd, pointer, size = arguments[:3]
        raw = _copy_address(thread, pointer, size)
        pair = self._find_pair(thread, fd)
        if pair is not None:
            if _family(raw) != _socket.AF_UNSPEC:
                parse_address(raw)
                pair.peer = raw
            return DONE
        if _family(raw) == _socket.AF_UNIX and self._prepared.unix:
            return self._connect_unix(thread, fd, raw)
        address, port = parse_address(raw)
        destination = None
        if not is_resolver(address, port):
            destination = self.gateway.find_destination(address, port)
            if destination is None:
                return _failed(errno.ECONNREFUSED)
        own = self._find_socket(thread, fd)
        try:
            self._give_end(self._join(own), destination)
            self._remember_peer(os.fstat(own.fileno()).st_ino, raw)
            same_file = self._prepared.step.same_file
            return DONE if same_file else netlink_binds.replace_socket(thread, fd, own)
        finally:
            own.close()

    def _connect_unix(self, thread: CallingThread, fd: int, raw: bytes) -> Decision:
        """Replace the socket with a new one that is connected to a granted socket file.

        Compare the requested path with the granted paths as text, because otherwise the target
        could make the supervisor look up any path. Connect to the granted file itself, which is
        open, even if its path now leads to another file. Do not connect the target's own socket,
        because the target could make it a blocking socket, and the supervisor would have to wait.
        """
        name = os.fsdecode(raw[2:].partition(b"\0")[0])
        path = os.path.normpath(os.path.join(thread.working_directory(), name))
        kind = UNIX_KINDS.get(thread.protocol(fd))
        thread.check()
        if kind is None:
            return _failed(errno.EPROTOTYPE)
        if not name or path not in self._prepared.unix:
            self._denials.add("unix_socket", printable(path))
            return _failed(errno.EACCES)
        own = _socket.socket(_socket.AF_UNIX, kind)
        try:
            own.setblocking(False)
            with self._ids.as_target():
                own.connect(f"/proc/self/fd/{self._prepared.unix[path]}")
            return netlink_binds.replace_socket(thread, fd, own)
        finally:
            own.close()

    def _give_end(self, end: _socket.socket, destination: Destination | None) -> None:
        if destination is None:
            self.gateway.dns_server.add_stream(end)
        else:
            self.gateway.admit(end, destination)

    def _find_socket(self, thread: CallingThread, fd: int) -> _socket.socket:
        """Return the target's TCP socket, or a new one of the same family that will replace it."""
        if self._prepared.step.same_file:
            own = thread.take(fd)
            try:
                _check_unconnected(own)
            except OSError:
                own.close()
                raise
            return own
        family = {"TCP": _socket.AF_INET, "TCPv6": _socket.AF_INET6}.get(thread.protocol(fd))
        connected = thread.inode(fd) in self._peers
        thread.check()
        if family is None:
            raise OSError(errno.EAFNOSUPPORT, "the socket is not TCP")
        if connected:
            raise OSError(errno.EISCONN, "the socket is connected already")
        own = _socket.socket(family, _socket.SOCK_STREAM)
        own.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        return own

    def _join(self, own: _socket.socket) -> _socket.socket:
        """Connect a socket to the supervisor's listener, and return the accepted socket.

        Other users on the host can connect to this listener too, so close the connections that do
        not come from `own`. The wait is short, because the supervisor does nothing else meanwhile.
        """
        listener, where = self._listener(own.family)
        blocking = os.get_blocking(own.fileno())
        if blocking:
            os.set_blocking(own.fileno(), False)
        try:
            code = own.connect_ex(where)
        finally:
            if blocking:
                os.set_blocking(own.fileno(), True)
        if code not in {0, errno.EINPROGRESS}:
            raise OSError(code, os.strerror(code))
        name = own.getsockname()[:2]
        while accepted := _accept(listener, own):
            end, peer = accepted
            if peer[:2] == name:
                return end
            end.close()
        # The connection did not arrive in time. The target can cause such waits, so count this one
        # as RATE calls. Then it can happen only rarely.
        self._rate_limit.use(RATE)
        abi.syscall("connect", own.fileno(), UNSPECIFIED, len(UNSPECIFIED))
        raise OSError(errno.ECONNREFUSED, "the listener is busy")

    def _listener(self, family: int) -> tuple[_socket.socket, tuple[str, int]]:
        """Return the supervisor's listener for an address family, and the listener's address."""
        if family not in self._listeners:
            # A container engine may disable IPv6 by removing its addresses. Listening on ::1 then
            # fails, but an IPv6 socket can still listen on a mapped IPv4 address.
            six = family == _socket.AF_INET6
            addresses = ("::1", "::ffff:127.0.0.1") if six else ("127.0.0.1",)
            made = _listen_on_first(family, addresses)
            self._listeners[family] = made, made.getsockname()
        return self._listeners[family]

    def _remember_peer(self, inode: int, address: bytes) -> None:
        if len(self._peers) >= MAX_PEERS:
            del self._peers[next(iter(self._peers))]
        self._peers[inode] = address

    def _bind(self, thread: CallingThread, arguments: tuple[int, ...]) -> Decision:
        """Replace the socket with one that is bound on the host, if the policy allows the port.

        If the target asks for port 0, leave the socket unbound. The target can then connect this
        socket, but cannot listen on it.
        """
        fd, pointer, size = arguments[:3]
        raw = _copy_address(thread, pointer, size)
        if _family(raw) == netlink_binds.AF_NETLINK:
            return netlink_binds.bind_netlink(thread, fd, raw)
        address, port = parse_address(raw)
        if thread.inode(fd) in self._datagrams:
            return DONE if port == 0 else _failed(errno.EACCES)
        if address not in {ANY, ANY6, LOOPBACK, LOOPBACK6}:
            return _failed(errno.EADDRNOTAVAIL)
        if not thread.protocol(fd).startswith("TCP"):
            return _failed(errno.EINVAL)
        thread.check()
        if port == 0:
            return DONE
        if port not in self._prepared.step.ports:
            self._denials.add("listen", f"port {port}", allow=f"--listen {port}")
            return _failed(errno.EACCES)
        own = self._take_port(port)
        self._bound[os.fstat(own.fileno()).st_ino] = own
        return netlink_binds.replace_socket(thread, fd, own)

    def _take_port(self, port: int) -> _socket.socket:
        """Return a socket that is bound to `port`.

        If an earlier `bind` has bound a socket to this port, and the socket does not listen yet,
        return this socket. Otherwise return the one that was bound before the target's start. If
        that is in use already, bind a new one.
        """
        for inode, own in self._bound.items():
            if own.getsockname()[1] == port:
                return self._bound.pop(inode)
        reserved = self._prepared.ports.pop(port, None)
        if reserved is None:
            reserved = published_ports.bind_port(port, everywhere=self._prepared.step.everywhere)
        return _socket.socket(fileno=reserved)

    def _listen(self, thread: CallingThread, arguments: tuple[int, ...]) -> Decision:
        inode = thread.inode(arguments[0])
        thread.check()
        own = self._bound.pop(inode, None)
        if own is None:
            # A socket in `_peers` already listens or is connected. Any other socket is not bound.
            # Refuse to listen on it, because the kernel would choose the port.
            return DONE if inode in self._peers else _failed(errno.EACCES)
        try:
            own.listen(min(max(calling_thread.to_int(arguments[1]), 0), MAX_BACKLOG))
        finally:
            own.close()
        self._remember_peer(inode, b"")
        return DONE

    def _get_own_name(self, thread: CallingThread, arguments: tuple[int, ...]) -> Decision:
        pair = self._find_pair(thread, arguments[0])
        if pair is None:
            return CONTINUED
        name = sockets.inet_address(pair.own_address(), DNS_PORT - 1)
        return _write_name(thread, arguments, name)

    def _get_peer_name(self, thread: CallingThread, arguments: tuple[int, ...]) -> Decision:
        inode = thread.inode(arguments[0])
        pair = self._datagrams.get(inode)
        name = self._peers.get(inode) if pair is None else pair.peer
        return _write_name(thread, arguments, name) if name else CONTINUED

    def _receive_from(self, thread: CallingThread, arguments: tuple[int, ...]) -> Decision:
        pair = self._find_pair(thread, arguments[0])
        if pair is None:
            return CONTINUED
        pointer, length = arguments[4:6]
        size = int.from_bytes(thread.read(length, 4), sys.byteorder)
        thread.check()
        thread.write(pointer, pair.peer[:size])
        data = self._take_datagram(thread, arguments) if self._prepared.step.same_file else None
        if data is None:
            # Let the kernel receive the datagram. It does not change the sender's address that was
            # written above, but sets the length of the address to 0.
            return CONTINUED
        thread.write(arguments[1], data[: arguments[2]])
        thread.write(length, len(pair.peer).to_bytes(4, sys.byteorder))
        whole = calling_thread.to_int(arguments[3]) & _socket.MSG_TRUNC
        return replace(DONE, value=len(data) if whole else min(len(data), arguments[2]))

    def _take_datagram(self, thread: CallingThread, arguments: tuple[int, ...]) -> bytes | None:
        """Receive a datagram for the caller. Return None if there is no datagram yet."""
        own = thread.take(arguments[0])
        flags = calling_thread.to_int(arguments[3]) & _socket.MSG_PEEK
        try:
            return own.recv(MAX_DATAGRAM, flags | _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        finally:
            own.close()

    def _receive_message(self, thread: CallingThread, arguments: tuple[int, ...]) -> Decision:
        pair = self._find_pair(thread, arguments[0])
        if pair is not None:
            header = thread.read(arguments[1], 12)  # msg_name and msg_namelen
            pointer = int.from_bytes(header[:8], sys.byteorder)
            size = int.from_bytes(header[8:], sys.byteorder)
            thread.check()
            if pointer:
                thread.write(pointer, pair.peer[:size])
        return CONTINUED


CALLS: dict[str, Call] = {
    "socket": SocketBroker._make_datagram_socket,  # noqa: SLF001 - own methods
    "connect": SocketBroker._connect,  # noqa: SLF001
    "bind": SocketBroker._bind,  # noqa: SLF001
    "listen": SocketBroker._listen,  # noqa: SLF001
    "getsockname": SocketBroker._get_own_name,  # noqa: SLF001
    "getpeername": SocketBroker._get_peer_name,  # noqa: SLF001
    "recvfrom": SocketBroker._receive_from,  # noqa: SLF001
    "recvmsg": SocketBroker._receive_message,  # noqa: SLF001
}
NAMES = frozenset(("getsockname", "getpeername", "recvfrom", "recvmsg"))


def parse_address(raw: bytes) -> tuple[bytes, int]:
    """Return the address and the port of a sockaddr.

    An IPv4 address has 4 bytes, even if the sockaddr contains it as a mapped IPv6 address.
    """
    family = _family(raw)
    if family == _socket.AF_INET and len(raw) >= 16:
        return raw[4:8], int.from_bytes(raw[2:4], "big")
    if family == _socket.AF_INET6 and len(raw) >= 24:
        return unmap(raw[8:24]), int.from_bytes(raw[2:4], "big")
    known = family in {_socket.AF_INET, _socket.AF_INET6}
    code = errno.EINVAL if known else errno.EAFNOSUPPORT
    raise OSError(code, "the address is not an internet address")


def is_resolver(address: bytes, port: int) -> bool:
    return port == DNS_PORT and address in {LOOPBACK, LOOPBACK6}


def _family(raw: bytes) -> int:
    return int.from_bytes(raw[:2], sys.byteorder)


def _copy_address(thread: CallingThread, pointer: int, size: int) -> bytes:
    length = calling_thread.to_int(size)
    if not 2 <= length <= MAX_ADDRESS:
        raise OSError(errno.EINVAL, "the address has an invalid length")
    raw = thread.read(pointer, length)
    thread.check()
    return raw


def _write_name(thread: CallingThread, arguments: tuple[int, ...], name: bytes) -> Decision:
    pointer, length = arguments[1:3]
    size = int.from_bytes(thread.read(length, 4), sys.byteorder)
    thread.check()
    thread.write(pointer, name[:size])
    thread.write(length, len(name).to_bytes(4, sys.byteorder))
    return DONE


def _listen_on_first(family: int, addresses: tuple[str, ...]) -> _socket.socket:
    made = _socket.socket(family, _socket.SOCK_STREAM)
    for address in addresses:
        try:
            made.bind((address, 0))
            made.listen(BACKLOG)
            made.setblocking(False)
        except OSError:
            if address == addresses[-1]:
                made.close()
                raise
        else:
            break
    return made


def _check_unconnected(own: _socket.socket) -> None:
    """Raise OSError if the socket is not TCP, or if it is connected or connecting.

    The supervisor will connect this socket to its own listener. On a socket that is still
    connecting, that call might only finish the connect that the target began. The supervisor would
    then wait in vain at its listener.
    """
    if own.family not in {_socket.AF_INET, _socket.AF_INET6}:
        raise OSError(errno.EAFNOSUPPORT, "the socket is not TCP")
    if own.getsockopt(_socket.SOL_SOCKET, _socket.SO_PROTOCOL) != _socket.IPPROTO_TCP:
        raise OSError(errno.EAFNOSUPPORT, "the socket is not TCP")
    # The first byte of TCP_INFO is the state. Do not use `getpeername`, because it raises an
    # exception in the usual case, an unconnected socket. That would be slower.
    if own.getsockopt(_socket.IPPROTO_TCP, _socket.TCP_INFO, 1)[0] != TCP_CLOSE:
        raise OSError(errno.EISCONN, "the socket is connected already")


def _failed(code: int | None) -> Decision:
    return Decision(verdict="answer", error=code or errno.EPERM)


def _accept(
    listener: _socket.socket, own: _socket.socket
) -> tuple[_socket.socket, tuple[str, int]] | None:
    """Accept the next connection to the listener. Return (accepted socket, address of its peer).

    The connection is usually the one from `own`. Return None if no connection comes within
    ACCEPT_SECONDS.
    """
    try:
        fd, peer = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001
    except BlockingIOError:
        # The target may have set options on the socket that delay the handshake by 0.2 s.
        # TCP_QUICKACK prevents this.
        own.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_QUICKACK, 1)
        poll = select.poll()
        poll.register(listener.fileno(), select.POLLIN)
        return _accept(listener, own) if poll.poll(ACCEPT_SECONDS * 1000) else None
    os.set_blocking(fd, False)
    return _socket.socket(own.family, _socket.SOCK_STREAM, _socket.IPPROTO_TCP, fd), peer
