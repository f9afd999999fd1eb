"""Copy between two sockets in both directions, with one thread that waits for both.

Each direction keeps at most one block, and writes it before it reads again, so a slow reader slows
down its sender. When one direction ends, its reader gets end of file, and the other direction
continues.
"""

import select
import socket
import sys

from corral.network.sockets import close_socket

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers

BLOCK_BYTES = 1 << 16
MAX_LAST_PUMPS = 256
"""How many times one direction may read or write after the run is over. This is enough for
everything that fits into socket buffers.
"""


class RunOverError(ConnectionAbortedError):
    """Raised because the run is over. This is a class of its own, because a socket can raise a
    plain ConnectionAbortedError during the run.
    """


class Direction:
    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.moved = 0
        self.ended = False
        self._unsent = memoryview(b"")

    @property
    def waits_for(self) -> tuple[socket.socket, int] | None:
        """Return the socket and poll event that this direction waits for, or None at its end."""
        if self._unsent:
            return self.sink, select.POLLOUT
        return None if self.ended else (self.source, select.POLLIN)

    def pump(self) -> None:
        """Read or write once. Raise OSError if the source or the sink is broken."""
        try:
            if not self._unsent:
                self._unsent = memoryview(self.source.recv(BLOCK_BYTES))
                if not self._unsent:
                    self.ended = True
                    self.sink.shutdown(socket.SHUT_WR)
                    return
            sent = self.sink.send(self._unsent)
        except BlockingIOError:
            return
        self.moved += sent
        self._unsent = self._unsent[sent:]

    def pump_all(self) -> None:
        """Copy what the source has sent. Stop early if a socket is broken or the sink is full."""
        for _ in range(MAX_LAST_PUMPS):
            before = self.moved, len(self._unsent)
            try:
                if not self.ended:
                    self.pump()
            except OSError:
                return
            if self.ended or before == (self.moved, len(self._unsent)):
                return


class PolledCopy:
    """Copies until both directions have ended.

    The copy stops early after an error, after `idle_seconds` without data, or when the run is over
    (end of file on the descriptor `stop`). At the end of the run it first copies the data that has
    already been sent. After an early stop, a peer that has not received all data gets a reset,
    because an orderly end would make the data look complete.
    """

    def __init__(
        self, client: socket.socket, server: socket.socket, *, stop: int, idle_seconds: float
    ) -> None:
        self._up = Direction(client, server)
        self._down = Direction(server, client)
        self._stop = stop
        self._idle_milliseconds = int(idle_seconds * 1000)
        self.up = self.down = 0

    def run(self) -> None:
        try:
            for end in (self._up.source, self._down.source):
                end.setblocking(False)
                # Turn off Nagle's algorithm, because the sender has already decided which bytes to
                # send together.
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._copy_until_stopped()
        except OSError:
            for direction in (self._up, self._down):
                close_socket(direction.sink, reset=not direction.ended)
            raise
        finally:
            self.up, self.down = self._up.moved, self._down.moved

    def _copy_until_stopped(self) -> None:
        """Copy until both directions have ended. If the run ends first, pass on what the target and
        the server have already sent, as the kernel does for a direct connection. Then raise
        RunOverError if a direction is still open.
        """
        try:
            while self._step():
                pass
        except RunOverError:
            self._up.pump_all()
            self._down.pump_all()
            if not (self._up.ended and self._down.ended):
                raise

    def _step(self) -> bool:
        waiting = [
            (direction, *direction.waits_for)
            for direction in (self._up, self._down)
            if direction.waits_for is not None
        ]
        if not waiting:
            return False
        masks: dict[int, int] = {}
        for _, end, mask in waiting:
            masks[end.fileno()] = masks.get(end.fileno(), 0) | mask
        ready = wait(masks, self._idle_milliseconds, stop=self._stop)
        for direction, end, mask in waiting:
            # Call `pump` after an error or a hang-up too: its read or write raises the error.
            if ready.get(end.fileno(), 0) & (mask | ~(select.POLLIN | select.POLLOUT)):
                direction.pump()
        return True


def wait(masks: dict[int, int], milliseconds: int, *, stop: int) -> dict[int, int]:
    """Wait for descriptors, and return the ready ones with their events. Raise TimeoutError if none
    is ready in time, and RunOverError if `stop` is ready.
    """
    poll = select.poll()
    poll.register(stop, select.POLLIN)
    for fd, mask in masks.items():
        poll.register(fd, mask)
    ready = dict(poll.poll(milliseconds))
    if not ready:
        raise TimeoutError("no data arrived in time")
    if stop in ready:
        raise RunOverError("the run is over")
    return ready
