"""Look up names in the same way as other programs on this host, without blocking the event loop.

Only the C library's getaddrinfo supports everything that an administrator may have configured, such
as /etc/hosts, nsswitch, search lists and split DNS. It blocks, so it is called in child processes.
The kernel kills the children when the supervisor ends, and an alarm signal ends a child whose
lookup takes too long.
"""

from __future__ import annotations

import _socket
import os
import sys

from corral.network.addresses import deduplicate
from corral.network.gateway import event_loop
from corral.network.sockets import look_up_addresses

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    Lookup = Callable[[str], Sequence[bytes]]
    Done = Callable[[tuple[bytes, ...]], None]
else:
    from _collections import deque  # importing `collections` takes a millisecond


MAX_CHILDREN = 4
LOOKUP_SECONDS = 10
"""The time limit for one lookup. This is enough to ask two DNS servers, because the C library waits
five seconds for each.
"""
MAX_REPLY_BYTES = 4096
SIGKILL = 9


class LookupProcess:
    def __init__(self, pid: int, channel: _socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.name: str | None = None


class Lookups:
    """Looks up names. If several callers wait for the same name, it is looked up only once, but
    answers are not cached.
    """

    def __init__(self, loop: event_loop.Loop, lookup: Lookup = look_up_addresses) -> None:
        self._loop = loop
        self._lookup = lookup
        self._children: list[LookupProcess] = []
        self._waiting: deque[str] = deque()
        self._asked: dict[str, list[Done]] = {}

    def ask(self, name: str, done: Done) -> None:
        """Look up a name, and later call `done` with its addresses. If the lookup fails, call
        `done` with an empty tuple. Raise OSError if a process is needed and cannot be started.
        """
        if name in self._asked:
            self._asked[name].append(done)
            return
        self._asked[name] = [done]
        self._waiting.append(name)
        try:
            self._assign()
        except OSError:
            # Only the lookup of this name fails. Other names can still be looked up by the children
            # that are already running.
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
                self._drop(child)  # the child has died
                self._waiting.appendleft(name)
            else:
                child.name = name

    def _idle(self) -> LookupProcess | None:
        for child in self._children:
            if child.name is None:
                return child
        return self._start() if len(self._children) < MAX_CHILDREN else None

    def _drop(self, child: LookupProcess) -> None:
        self._children.remove(child)
        self._loop.forget(child.channel.fileno())
        child.channel.close()
        # A child that has ended keeps its pid until `waitpid` reaps it, so the signal does not
        # reach another process that has got the same pid.
        try:
            os.kill(child.pid, SIGKILL)
            os.waitpid(child.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            # The kernel has already reaped the child. It does so only if the program that uses
            # corral ignores SIGCHLD.
            pass

    def _start(self) -> LookupProcess:
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
        child = LookupProcess(pid, ours)
        self._children.append(child)
        self._loop.watch(ours.fileno(), event_loop.IN, lambda _: self._answered(child))
        return child

    def _answered(self, child: LookupProcess) -> None:
        try:
            reply = child.channel.recv(MAX_REPLY_BYTES)
        except BlockingIOError:
            return
        except OSError:
            reply = b""
        name, child.name = child.name, None
        # Drop a child that has ended, which an empty reply shows. If no name is waiting, also drop
        # a living child, but keep the last one for the next name.
        if not reply or (not self._waiting and len(self._children) > 1):
            self._drop(child)
        for done in self._asked.pop(name, []) if name is not None else []:
            done(unpack(reply))
        try:
            self._assign()
        except OSError:
            self._fail_waiting()

    def _fail_waiting(self) -> None:
        """If no child is left, end the waiting lookups. Their callers get an empty list of
        addresses.
        """
        if self._children:
            return
        while self._waiting:
            for done in self._asked.pop(self._waiting.popleft(), []):
                done(())


def pack(addresses: Sequence[bytes]) -> bytes:
    """Return the reply that a child sends for these addresses. The reply is never empty, because to
    the parent an empty message means that the child has ended.
    """
    return " ".join(["", *map(bytes.hex, deduplicate(addresses)), ""]).encode("ascii")


def unpack(reply: bytes) -> tuple[bytes, ...]:
    return tuple(map(bytes.fromhex, reply.decode("ascii").split()))


def _serve(channel: int, lookup: Lookup, parent: int) -> None:
    """Answer lookups in a child process. This function never returns, because the child must not go
    on with the parent's code.
    """
    try:
        _drop_inherited(channel, parent)
        import signal

        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        while name := os.read(channel, 256):
            signal.alarm(LOOKUP_SECONDS)
            try:
                reply = pack(lookup(name.decode("ascii")))
            except (OSError, ValueError):
                reply = pack(())
            signal.alarm(0)
            os.write(channel, reply)
    finally:
        os._exit(0)


def _drop_inherited(channel: int, parent: int) -> None:
    """Close all inherited descriptors except `channel`, and replace the standard streams with
    /dev/null. Otherwise this child would keep the target's stdin and stdout open, and their other
    ends would not get end of file. Also make the kernel kill this child when its parent ends.
    """
    from corral.abi import linux as abi

    abi.prctl(abi.PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, channel)
    os.closerange(channel + 1, max(map(int, os.listdir("/proc/self/fd"))) + 1)
