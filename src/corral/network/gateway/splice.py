"""Copy between two sockets in both directions, through pipes in the kernel if possible.

Each direction writes what it has read before it reads again, so a slow reader slows down its
sender. When one direction ends, its reader gets end of file, and the other direction continues. A
direction uses a pipe only while it has bytes to write, so an idle connection needs no buffer.
"""

from __future__ import annotations

import _socket
import errno
import os
import sys
import time

from corral.network.gateway import event_loop
from corral.network.sockets import close_socket

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_BYTES = 1 << 20
COPY_BYTES = 1 << 14
"""The size of a read without a pipe. It is small, because each connection may keep this many bytes
in memory.
"""
MAX_PIPES = 128
MAX_LARGE_PIPES = 16
"""The number of pipes that have the size BLOCK_BYTES, while all others have the kernel's default
size. This limits how much memory a target can use up by not reading.
"""
MAX_FREE_PIPES = 4
ROUNDS = 4
"""How many times in a row one direction may read before other directions are served."""
LAST_SECONDS = 2.0
"""How long all connections together may take, after the end of the run, to pass on what has already
been sent. Without this limit, peers that are still alive could keep corral copying forever.
"""
FEW_BYTES = 4096
"""If a read returns fewer bytes than this, there is no second read, because it would rarely find
more.
"""
F_SETPIPE_SZ = 1031
FLAGS = getattr(os, "SPLICE_F_MOVE", 0) | getattr(os, "SPLICE_F_NONBLOCK", 0)
ERRORS = 0x008 | 0x010
UNSPLICED = frozenset({errno.EINVAL, errno.ENOSYS, errno.EPERM})


class Pipe:
    def __init__(self, *, size: int) -> None:
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        if size:
            import fcntl

            try:
                fcntl.fcntl(self.writer, F_SETPIPE_SZ, size)
            except OSError:
                # The user's quota for memory in pipes is used up. A pipe of the default size works
                # too.
                pass

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class Pipes:
    def __init__(self) -> None:
        self.max_pipes = MAX_PIPES
        self.lent = 0
        self._free: list[Pipe] = []

    def borrow(self) -> Pipe | None:
        if self.lent >= self.max_pipes:
            return None
        size = BLOCK_BYTES if self.lent < MAX_LARGE_PIPES else 0
        try:
            pipe = self._free.pop() if self._free else Pipe(size=size)
        except OSError:
            return None
        self.lent += 1
        return pipe

    def give_back(self, pipe: Pipe, *, empty: bool) -> None:
        self.lent -= 1
        if empty and len(self._free) < MAX_FREE_PIPES:
            self._free.append(pipe)
        else:
            pipe.close()

    def close(self) -> None:
        while self._free:
            self._free.pop().close()


class Direction:
    """Copies from one socket to another. `stuck` is the number of bytes that were read but not yet
    written.
    """

    def __init__(
        self, source: _socket.socket, sink: _socket.socket, pipes: Pipes, head: bytes
    ) -> None:
        self.source = source
        self.sink = sink
        self.moved = 0
        self.ended = False
        self.done = False
        self._pipes = pipes
        self._pipe: Pipe | None = None
        self._unsent = memoryview(head)
        self._in_pipe = 0

    @property
    def stuck(self) -> int:
        return len(self._unsent) + self._in_pipe

    def pump(self) -> None:
        """Copy what can be copied without waiting, in at most ROUNDS reads. Raise OSError if the
        source is broken.
        """
        for _ in range(ROUNDS):
            if self.done or not self._drain() or not self._fill():
                return
            if self.ended:
                self.close()
                try:
                    self.sink.shutdown(_socket.SHUT_WR)
                except OSError:
                    pass  # the sink is already closed in both directions
                return
            if self.stuck < FEW_BYTES:
                break
        self._drain()

    def pump_all(self, until: float) -> None:
        """Copy what the source has sent. Stop early if a socket is broken, the sink is full, or the
        time is over.
        """
        while not self.done and time.monotonic() < until:
            before = self.moved
            try:
                self.pump()
            except OSError:
                return
            if self.moved == before:
                return

    def close(self) -> None:
        self.done = True
        self._unsent = memoryview(b"")
        self._return_pipe()
        self._in_pipe = 0

    def _drain(self) -> bool:
        """Write the bytes that were read. Return False if some could not be written yet or the sink
        failed.
        """
        try:
            while self._unsent:
                sent = self.sink.send(self._unsent)
                self._unsent = self._unsent[sent:]
                self.moved += sent
            while self._pipe is not None and self._in_pipe:
                sent = os.splice(self._pipe.reader, self.sink.fileno(), self._in_pipe, flags=FLAGS)
                self._in_pipe -= sent
                self.moved += sent
        except BlockingIOError:
            return False
        except OSError:
            # Only this direction ends, because a peer that has stopped reading may still send.
            self.close()
            return False
        self._return_pipe()
        return True

    def _fill(self) -> bool:
        """Read once, and return False if nothing can be read now."""
        self._pipe = self._pipes.borrow()
        try:
            if self._pipe is None:
                chunk = self.source.recv(COPY_BYTES)
                self._unsent = memoryview(chunk)
                self.ended = not chunk
            else:
                fd = self.source.fileno()
                self._in_pipe = os.splice(fd, self._pipe.writer, BLOCK_BYTES, flags=FLAGS)
                self.ended = not self._in_pipe
        except BlockingIOError:
            self._return_pipe()
            return False
        except OSError as error:
            if self._pipe is None or error.errno not in UNSPLICED:
                raise
            # The kernel does not support splice, or a seccomp filter around corral denies the call.
            # Stop using pipes.
            self._pipes.max_pipes = 0
            self._return_pipe()
        return True

    def _return_pipe(self) -> None:
        if self._pipe is not None:
            self._pipes.give_back(self._pipe, empty=self._in_pipe == 0)
            self._pipe = None


class SplicedCopy:
    """Copies between a client and a server in both directions. Calls `done` once, when the copy has
    ended or was closed.
    """

    def __init__(
        self,
        loop: event_loop.Loop,
        client: _socket.socket,
        server: _socket.socket,
        *,
        pipes: Pipes,
        idle_seconds: float,
        done: Callable[[], None],
        to_server: bytes = b"",
        to_client: bytes = b"",
    ) -> None:
        self.up = Direction(client, server, pipes, to_server)
        self.down = Direction(server, client, pipes, to_client)
        self._loop = loop
        self._idle_seconds = idle_seconds
        self._done = done
        self._closed = False
        self._active = time.monotonic()
        self._timer = loop.after(idle_seconds, self._check_idle)

    def start(self) -> None:
        self._step(event_loop.IN | event_loop.OUT, event_loop.IN | event_loop.OUT)

    def finish(self, until: float) -> None:
        """End the copy after the target has ended. First pass on what the client and the server
        have already sent. On a direct connection the kernel, too, delivers what a program sent
        before it exited.
        """
        self.up.pump_all(until)
        self.down.pump_all(until)
        self.close(reset=True)

    def close(self, *, reset: bool = False) -> None:
        """End the copy. With `reset`, a peer that has not received all data gets a TCP reset,
        because an orderly end would make the data look complete.
        """
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        for direction in (self.up, self.down):
            direction.close()
            self._loop.forget(direction.sink.fileno())
            close_socket(direction.sink, reset=reset and not direction.ended)
        self._done()

    def _step(self, client: int, server: int) -> None:
        if self._closed:
            return
        self._active = time.monotonic()
        try:
            if client & (event_loop.IN | ERRORS) or server & event_loop.OUT:
                self.up.pump()
            if server & (event_loop.IN | ERRORS) or client & event_loop.OUT:
                self.down.pump()
        except OSError:
            self.close(reset=True)
            return
        if self.up.done and self.down.done:
            self.close()
            return
        self._watch(self.up, self.down, lambda events: self._step(events, 0))
        self._watch(self.down, self.up, lambda events: self._step(0, events))

    def _watch(
        self, reading: Direction, writing: Direction, handler: Callable[[int], None]
    ) -> None:
        """Watch the socket that is the source of `reading` and the sink of `writing`, for the
        events that these directions wait for.
        """
        mask = event_loop.IN if not (reading.done or reading.ended or reading.stuck) else 0
        if writing.stuck and not writing.done:
            mask |= event_loop.OUT
        self._loop.watch(reading.source.fileno(), mask, handler)

    def _check_idle(self) -> None:
        left = self._active + self._idle_seconds - time.monotonic()
        if left > 0:
            self._timer = self._loop.after(left, self._check_idle)
        else:
            self.close(reset=True)
