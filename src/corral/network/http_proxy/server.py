"""The way out through one loopback port: an HTTP proxy, where the wall is everything else.

For systems whose walls can leave a target one port of the host's and nothing more. It takes CONNECT
and `http://` requests and checks them as `outbound.py` says. Every process of the host can connect
to such a port, so it asks for a password that only the target's environment has; without it nobody
is told anything, and nothing is recorded.

It begins in the supervisor after the target was forked: it has threads. Close breaks off what is
under way. Names that are being looked up cannot be interrupted; their threads end with the process.

    door = HttpDoor(listener, password, Outbound(...)); ...; door.close()
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time

from corral.network import budgets
from corral.network.budgets import MOST_SPARE
from corral.network.http_proxy import copy as exchange
from corral.network.http_proxy.connection import Connection

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.denials.traffic import Traffic
    from corral.network.http_proxy.outbound import Outbound

MOST_CONNECTIONS = 128
OTHER_DESCRIPTORS = 64
"""What the supervisor itself and lookups may need."""
LAST_BREATH = 0.5
"""Seconds: corral is gone within one of its target."""
MOMENT = 0.1
FOREVER = -1


class Client:
    """One end of an accepted connection, as `Connection` uses it."""

    def __init__(self, end: socket.socket, *, stop: int, patience: float) -> None:
        end.setblocking(False)
        self.socket = end
        self._stop = stop
        self._patience = patience

    def recv(self, timeout: float) -> bytes:
        while True:
            self._wait(select.POLLIN, timeout)
            try:
                return self.socket.recv(1 << 14)
            except BlockingIOError:
                continue

    def send(self, data: bytes) -> None:
        deadline = time.monotonic() + self._patience
        left = memoryview(data)
        while left:
            self._wait(select.POLLOUT, max(0.0, deadline - time.monotonic()))
            try:
                left = left[self.socket.send(left) :]
            except BlockingIOError:
                continue

    def end(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        exchange.reset(self.socket)

    def _wait(self, mask: int, timeout: float) -> None:
        ready = exchange.wait(
            {self.socket.fileno(): mask, self._stop: select.POLLIN}, int(timeout * 1000)
        )
        if self._stop in ready:
            raise ConnectionAbortedError("the run is over")


class HttpDoor:
    """Takes over the listener. `password` is a value of Proxy-Authorization."""

    def __init__(
        self,
        listener: socket.socket,
        password: bytes,
        out: Outbound,
        *,
        most: int = MOST_CONNECTIONS,
    ) -> None:
        if not password:
            raise ValueError("a door for everybody")
        self.denials = out.denials
        self.most = budgets.room_for(most, besides=MOST_SPARE + OTHER_DESCRIPTORS)
        self._out = out
        self._password = password
        self._listener = listener
        self._listener.setblocking(False)
        self._stop, self._stopping = os.pipe()
        self._over = threading.Event()
        self._room = threading.Semaphore(self.most)
        self._handlers: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._accept_all, name="door", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Never ready before `close`: it has threads of its own."""
        return self._stop

    def deadline(self) -> float | None:
        return None

    def run_ready(self) -> None:
        """Never anything."""

    def traffic(self) -> Mapping[str, Traffic]:
        return self._out.traffic()

    def close(self) -> None:
        """What is under way gets a reset and is counted; nothing is recorded any more."""
        self._over.set()
        os.close(self._stopping)
        deadline = time.monotonic() + LAST_BREATH
        left = not _joined(self._thread, deadline)
        for handler in self._handlers.copy():
            left = not _joined(handler, deadline) or left
        self._out.end()
        self._listener.close()
        # Whoever is still there waits for a name or a call, and looks at this when it comes back.
        if not left:
            os.close(self._stop)

    def _accept_all(self) -> None:
        try:
            while not self._over.is_set():
                self._accept()
        except ConnectionAbortedError:
            pass

    def _accept(self) -> None:
        self._wait_for_client()
        if not self._room.acquire(blocking=False):
            self._out.deny("limit", f"more than {self.most} connections")
            self._room.acquire()
        if self._over.is_set():
            return
        try:
            end, _ = self._listener.accept()
        except BlockingIOError:
            self._room.release()
        except OSError:
            self._room.release()
            self._over.wait(MOMENT)  # descriptors are used up, and come back
        else:
            self._begin(end)

    def _begin(self, end: socket.socket) -> None:
        handler = threading.Thread(target=self._handle, args=(end,), daemon=True)
        self._handlers.add(handler)
        try:
            handler.start()
        except RuntimeError:  # threads are used up
            self._handlers.discard(handler)
            exchange.reset(end)
            self._room.release()

    def _wait_for_client(self) -> None:
        ready = exchange.wait(
            {self._listener.fileno(): select.POLLIN, self._stop: select.POLLIN}, FOREVER
        )
        if self._stop in ready:
            raise ConnectionAbortedError("the run is over")

    def _handle(self, end: socket.socket) -> None:
        timing = self._out.timing
        client = Client(end, stop=self._stop, patience=timing.head)
        connection = Connection(
            self._out,
            client,
            lambda server: exchange.Exchange(end, server, stop=self._stop, idle=timing.idle),
            password=self._password,
        )
        try:
            connection.run()
            end.close()
        except (OSError, ValueError):
            client.reset()
        finally:
            # Whoever asked was answered before: it is the next one who waits for room.
            if not connection.served:
                self._over.wait(self._out.spend())
            self._handlers.discard(threading.current_thread())
            self._room.release()


def _joined(thread: threading.Thread, deadline: float) -> bool:
    thread.join(max(0.0, deadline - time.monotonic()))
    return not thread.is_alive()
