"""Names -> addresses as every program on this host gets them, without ever blocking the loop.

Only the C library knows all that the host's administrator may have set up (/etc/hosts, nsswitch,
search lists, split DNS), and its getaddrinfo blocks. So it is called in child processes, started
when a name is first asked for, which die with the supervisor. One that hangs is ended by its own
alarm clock; nothing here has to watch it.
"""

from __future__ import annotations

import _socket
import os
import sys
from collections import deque

from corral.network.addresses import plain, read
from corral.network.gateway import event_loop

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corral.network.gateway.event_loop import Loop

    Lookup = Callable[[str], Sequence[bytes]]
    Done = Callable[[tuple[bytes, ...]], None]

MOST_CHILDREN = 4
MOST_ADDRESSES = 16
PATIENCE = 10
"""Seconds for one lookup: the C library asks two servers for five each."""
LONGEST_REPLY = 4096
SIGKILL = 9


def host_addresses(name: str) -> list[bytes]:
    """What this host says the name's addresses are, in the order it would try them; blocks."""
    found = _socket.getaddrinfo(
        name.encode("ascii"), None, _socket.AF_UNSPEC, _socket.SOCK_STREAM, 0, 0
    )
    return [read(str(item[4][0]).partition("%")[0]) for item in found]


class Child:
    """A process that looks up one name after the other."""

    def __init__(self, pid: int, channel: _socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.name: str | None = None

    def end(self) -> None:
        self.channel.close()
        # It is ours and not yet reaped, so the number is nobody else's.
        try:
            os.kill(self.pid, SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # whoever embeds us ignores SIGCHLD


class Lookups:
    """Callers who ask for a name that is being looked up share its answer; nothing is kept."""

    def __init__(self, loop: Loop, lookup: Lookup = host_addresses) -> None:
        self._loop = loop
        self._lookup = lookup
        self._children: list[Child] = []
        self._waiting: deque[str] = deque()
        self._asked: dict[str, list[Done]] = {}

    def ask(self, name: str, done: Done) -> None:
        """Call `done` later with the addresses, none if there are none or it took too long.

        OSError if no process can be started for it.
        """
        if name in self._asked:
            self._asked[name].append(done)
            return
        self._asked[name] = [done]
        self._waiting.append(name)
        try:
            self._assign()
        except OSError:
            # Others who wait have a child, or were told as well.
            if name in self._waiting:
                self._waiting.remove(name)
            del self._asked[name]
            raise

    def close(self) -> None:
        for child in list(self._children):
            self._drop(child)

    def _assign(self) -> None:
        while self._waiting:
            child = self._idle()
            if child is None:
                return
            name = self._waiting.popleft()
            try:
                child.channel.send(name.encode("ascii"))
            except OSError:
                self._drop(child)  # it died meanwhile
                self._waiting.appendleft(name)
            else:
                child.name = name

    def _idle(self) -> Child | None:
        for child in self._children:
            if child.name is None:
                return child
        return self._start() if len(self._children) < MOST_CHILDREN else None

    def _drop(self, child: Child) -> None:
        self._children.remove(child)
        self._loop.forget(child.channel.fileno())
        child.end()

    def _start(self) -> Child:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            _serve(theirs.fileno(), self._lookup, parent)
        theirs.close()
        ours.setblocking(False)
        child = Child(pid, ours)
        self._children.append(child)
        self._loop.watch(ours.fileno(), event_loop.IN, lambda _: self._answered(child))
        return child

    def _answered(self, child: Child) -> None:
        try:
            reply = child.channel.recv(LONGEST_REPLY)
        except BlockingIOError:
            return
        except OSError:
            reply = b""
        name, child.name = child.name, None
        # One child stays for the next name; without a reply it is dead.
        if not reply or (not self._waiting and len(self._children) > 1):
            self._drop(child)
        for done in self._asked.pop(name, []) if name is not None else []:
            done(unpack(reply))
        try:
            self._assign()
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        """No child is left and none can be started: nobody waits for ever."""
        if self._children:
            return
        while self._waiting:
            for done in self._asked.pop(self._waiting.popleft(), []):
                done(())


def pack(addresses: Sequence[bytes]) -> bytes:
    items = dict.fromkeys(map(plain, addresses[: 4 * MOST_ADDRESSES]))
    return b"\0" + b"".join(bytes((len(item),)) + item for item in list(items)[:MOST_ADDRESSES])


def unpack(reply: bytes) -> tuple[bytes, ...]:
    found: list[bytes] = []
    at = 1
    while at < len(reply):
        found.append(reply[at + 1 : at + 1 + reply[at]])
        at += 1 + reply[at]
    return tuple(found)


def _serve(channel: int, lookup: Lookup, parent: int) -> None:
    """The life of a child. It never returns: what it is a copy of must not run twice."""
    try:
        _let_go(channel, parent)
        while name := os.read(channel, 256):
            _alarm(PATIENCE)
            try:
                reply = pack(lookup(name.decode("ascii")))
            except (OSError, ValueError):
                reply = b"\0"
            _alarm(0)
            os.write(channel, reply)
    finally:
        os._exit(0)


def _let_go(channel: int, parent: int) -> None:
    """Of everything that it has only as a copy, above all of the target's stdin and stdout."""
    import signal

    from corral.abi import linux as abi

    abi.prctl(abi.PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, channel)
    os.closerange(channel + 1, max(map(int, os.listdir("/proc/self/fd"))) + 1)


def _alarm(seconds: int) -> None:
    import signal

    signal.alarm(seconds)
