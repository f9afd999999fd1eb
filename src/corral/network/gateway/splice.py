"""Bytes both ways between two sockets, through pipes in the kernel where it can be done.

Back-pressure is natural: a direction reads only when what it read last is written. The end of one
direction is passed on as such, the other goes on. A pipe belongs to a direction only while bytes
are stuck in it, so that idle connections hold two descriptors and no memory.
"""

from __future__ import annotations

import _socket
import errno
import os
import struct
import sys
import time

from corral.network.gateway import event_loop

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.network.gateway.event_loop import Loop

BLOCK = 1 << 20
COPIED = 1 << 14
"""Bytes read at a time where there is no pipe: every connection may hold as many."""
MOST_PIPES = 128
LARGE_PIPES = 16
"""The first have BLOCK bytes, the others the kernel's default: a target that never reads what it
asked for holds no more of the host's memory than that."""
SPARE_PIPES = 4
ROUNDS = 4
"""How often one direction may go on before others get their turn."""
FEW = 4096
"""After fewer bytes than these there are hardly more: asking would cost as much as moving them."""
F_SETPIPE_SZ = 1031
ERRORS = 0x008 | 0x010
UNSPLICED = frozenset({errno.EINVAL, errno.ENOSYS, errno.EPERM})
RESET = struct.pack("ii", 1, 0)


class Pipe:
    def __init__(self, *, size: int) -> None:
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        if size:
            import fcntl

            try:
                fcntl.fcntl(self.writer, F_SETPIPE_SZ, size)
            except OSError:
                pass  # users have a quota for these; the default size does it too

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class Pipes:
    """Empty pipes, lent to directions."""

    def __init__(self, *, most: int = MOST_PIPES) -> None:
        self.most = most
        self.lent = 0
        self._spare: list[Pipe] = []

    def borrow(self) -> Pipe | None:
        if self.lent >= self.most:
            return None
        if self._spare:
            self.lent += 1
            return self._spare.pop()
        try:
            pipe = Pipe(size=BLOCK if self.lent < LARGE_PIPES else 0)
        except OSError:
            return None
        self.lent += 1
        return pipe

    def give_back(self, pipe: Pipe, *, empty: bool) -> None:
        self.lent -= 1
        if empty and len(self._spare) < SPARE_PIPES:
            self._spare.append(pipe)
        else:
            pipe.close()

    def close(self) -> None:
        while self._spare:
            self._spare.pop().close()


class Direction:
    """From one socket to another. `stuck` bytes were read and could not be written yet."""

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
        self._held = memoryview(head)
        self._in_pipe = 0

    @property
    def stuck(self) -> int:
        return len(self._held) + self._in_pipe

    def pump(self) -> None:
        """Move what can be moved; OSError if the source is broken."""
        for _ in range(ROUNDS):
            if self.done or not self._drain() or not self._fill():
                return
            if self.ended:
                self._finish()
                return
            if self.stuck < FEW:
                break
        self._drain()

    def close(self) -> None:
        self.done = True
        self._held = memoryview(b"")
        if self._pipe is not None:
            self._pipes.give_back(self._pipe, empty=self._in_pipe == 0)
            self._pipe = None
        self._in_pipe = 0

    def _drain(self) -> bool:
        """Write what was read before; False if some of it is still stuck."""
        try:
            while self._held:
                sent = self.sink.send(self._held)
                self._held = self._held[sent:]
                self.moved += sent
            while self._pipe is not None and self._in_pipe:
                sent = os.splice(self._pipe.reader, self.sink.fileno(), self._in_pipe, flags=FLAGS)
                self._in_pipe -= sent
                self.moved += sent
        except BlockingIOError:
            return False
        except OSError:
            # Nobody reads there any more; the other direction may still have something to say.
            self.close()
            return False
        if self._pipe is not None:
            self._pipes.give_back(self._pipe, empty=True)
            self._pipe = None
        return True

    def _fill(self) -> bool:
        """Read once; False if there is nothing now."""
        self._pipe = self._pipes.borrow()
        try:
            if self._pipe is None:
                chunk = self.source.recv(COPIED)
                self._held = memoryview(chunk)
                self.ended = not chunk
            else:
                fd = self.source.fileno()
                self._in_pipe = os.splice(fd, self._pipe.writer, BLOCK, flags=FLAGS)
                self.ended = not self._in_pipe
        except BlockingIOError:
            if self._pipe is not None:
                self._pipes.give_back(self._pipe, empty=True)
                self._pipe = None
            return False
        except OSError as error:
            if self._pipe is None or error.errno not in UNSPLICED:
                raise
            # A kernel or a filter above us without splice: copying does it for all from now on.
            self._pipes.most = 0
            self._pipes.give_back(self._pipe, empty=False)
            self._pipe = None
        return True

    def _finish(self) -> None:
        self.close()
        try:
            self.sink.shutdown(_socket.SHUT_WR)
        except OSError:
            pass  # it is gone altogether


FLAGS = getattr(os, "SPLICE_F_MOVE", 0) | getattr(os, "SPLICE_F_NONBLOCK", 0)


class Relay:
    """Two directions between a client and a server until both have ended; then `done`."""

    def __init__(
        self,
        loop: Loop,
        client: _socket.socket,
        server: _socket.socket,
        *,
        pipes: Pipes,
        idle: float,
        done: Callable[[], None],
        to_server: bytes = b"",
        to_client: bytes = b"",
    ) -> None:
        self.up = Direction(client, server, pipes, to_server)
        self.down = Direction(server, client, pipes, to_client)
        self._loop = loop
        self._idle = idle
        self._done = done
        self._closed = False
        self._touched = time.monotonic()
        self._timer = loop.after(idle, self._look)

    def start(self) -> None:
        self._step(event_loop.IN | event_loop.OUT, event_loop.IN | event_loop.OUT)

    def close(self, *, reset: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        for direction in (self.up, self.down):
            direction.close()
            self._loop.forget(direction.source.fileno())
        for direction in (self.up, self.down):
            close(direction.source, reset=reset)
        self._done()

    def _step(self, client: int, server: int) -> None:
        if self._closed:
            return
        self._touched = time.monotonic()
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
        """What the one socket is waited for that `reading` reads from and `writing` writes to."""
        mask = event_loop.IN if not (reading.done or reading.ended or reading.stuck) else 0
        if writing.stuck and not writing.done:
            mask |= event_loop.OUT
        self._loop.watch(reading.source.fileno(), mask, handler)

    def _look(self) -> None:
        left = self._touched + self._idle - time.monotonic()
        if left > 0:
            self._timer = self._loop.after(left, self._look)
        else:
            self.close(reset=True)


def close(end: _socket.socket, *, reset: bool) -> None:
    if reset:
        try:
            end.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, RESET)
        except OSError:
            pass
    end.close()
