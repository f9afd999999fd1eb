"""Bytes both ways between two sockets, in one thread that waits for both.

Each direction holds one block at most and reads no further before that is written, so whoever does
not read stops its sender. The end of one direction is passed on as such, the other goes on.
"""

from __future__ import annotations

import select
import socket
import struct
import sys

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers

BLOCK = 1 << 16
RESET = struct.pack("ii", 1, 0)


class Direction:
    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.moved = 0
        self.ended = False
        self._held = memoryview(b"")

    @property
    def wants(self) -> tuple[socket.socket, int] | None:
        """Whom it waits for, and what for; None once it is over."""
        if self._held:
            return self.sink, select.POLLOUT
        return None if self.ended else (self.source, select.POLLIN)

    def go_on(self) -> None:
        """OSError if either end is broken."""
        try:
            if not self._held:
                self._held = memoryview(self.source.recv(BLOCK))
                if not self._held:
                    self.ended = True
                    self.sink.shutdown(socket.SHUT_WR)
                    return
            sent = self.sink.send(self._held)
        except BlockingIOError:
            return
        self.moved += sent
        self._held = self._held[sent:]


class Exchange:
    """`stop` is a descriptor whose end of file breaks it off; so does silence for `idle` seconds,
    and any error. Then both peers get a reset, which is no orderly end.
    """

    def __init__(
        self, client: socket.socket, server: socket.socket, *, stop: int, idle: float
    ) -> None:
        self._up = Direction(client, server)
        self._down = Direction(server, client)
        self._stop = stop
        self._idle = int(idle * 1000)

    @property
    def up(self) -> int:
        return self._up.moved

    @property
    def down(self) -> int:
        return self._down.moved

    def run(self) -> None:
        ends = (self._up.source, self._down.source)
        try:
            for end in ends:
                end.setblocking(False)
                # Whoever sent it already decided what belongs together.
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while self._step():
                pass
        except OSError:
            for end in ends:
                reset(end)
            raise

    def _step(self) -> bool:
        wanted = [
            (direction, *direction.wants)
            for direction in (self._up, self._down)
            if direction.wants is not None
        ]
        if not wanted:
            return False
        masks = {self._stop: select.POLLIN}
        for _, end, mask in wanted:
            masks[end.fileno()] = masks.get(end.fileno(), 0) | mask
        ready = wait(masks, self._idle)
        if self._stop in ready:
            raise ConnectionAbortedError("the run is over")
        for direction, end, mask in wanted:
            # An error or a hang-up shows when it is tried.
            if ready.get(end.fileno(), 0) & (mask | ~(select.POLLIN | select.POLLOUT)):
                direction.go_on()
        return True


def wait(masks: dict[int, int], milliseconds: int) -> dict[int, int]:
    """What became ready of these; TimeoutError."""
    poll = select.poll()
    for fd, mask in masks.items():
        poll.register(fd, mask)
    ready = dict(poll.poll(milliseconds))
    if not ready:
        raise TimeoutError("nothing came")
    return ready


def reset(end: socket.socket) -> None:
    """Close it so that the peer does not take this for an orderly end."""
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    except OSError:
        pass  # it is broken already
    end.close()
