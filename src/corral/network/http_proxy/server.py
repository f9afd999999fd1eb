"""Serve an HTTP proxy on one loopback port. The target can connect only to this port.

Any process on the host can connect to a loopback port, so the proxy requires a password that is
only in the target's environment. A client without the password learns nothing about the policy, and
its attempts are not recorded as denials.

The proxy uses threads, and a process with threads must not fork. So the proxy starts only after the
supervisor has forked the target. The lookup of a name cannot be interrupted, so a thread that waits
for a lookup may run until the process ends.
"""

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping

from corral.network.budgets import ACCEPT_RETRY_SECONDS, MAX_EXTRA_DIALS, reserve_descriptors
from corral.network.http_proxy import copy
from corral.network.http_proxy.connection import Connection
from corral.network.http_proxy.outbound import Outbound
from corral.network.sockets import close_socket
from corral.network.traffic import Traffic

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers

MAX_CONNECTIONS = 128
OTHER_DESCRIPTORS = 64
"""The number of descriptors that are kept free for the supervisor itself and for lookups."""
CLOSE_SECONDS = 0.5
"""How long `close` waits for threads. The time is short, so that corral ends less than a second
after its target.
"""
NO_TIMEOUT = -1


class ClientSocket:
    def __init__(self, end: socket.socket, *, stop: int, send_seconds: float) -> None:
        end.setblocking(False)
        self.socket = end
        self._stop = stop
        self._send_seconds = send_seconds

    def recv(self, timeout: float) -> bytes:
        while True:
            self._wait(select.POLLIN, timeout)
            try:
                return self.socket.recv(1 << 14)
            except BlockingIOError:
                continue

    def send(self, data: bytes) -> None:
        deadline = time.monotonic() + self._send_seconds
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
        close_socket(self.socket, reset=True)

    def _wait(self, mask: int, timeout: float) -> None:
        copy.wait({self.socket.fileno(): mask}, int(timeout * 1000), stop=self._stop)


class HttpProxy:
    """Accepts connections, and serves each in a thread. This object owns the listener and closes
    it. `password` is the value of Proxy-Authorization that clients have to send.
    """

    def __init__(
        self,
        listener: socket.socket,
        password: bytes,
        out: Outbound,
        *,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        if not password:
            raise ValueError("a proxy without a password is open to every process on the host")
        self.denials = out.denials
        self._max_connections = reserve_descriptors(
            max_connections, others=MAX_EXTRA_DIALS + OTHER_DESCRIPTORS
        )
        self._out = out
        self._password = password
        self._listener = listener
        self._listener.setblocking(False)
        self._stop, self._stopping = os.pipe()
        self._closed = threading.Event()
        self._slots = threading.Semaphore(self._max_connections)
        self._handlers: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._accept_all, name="http proxy", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Return a descriptor that only `close` makes ready. Until then the caller has nothing to
        do, because the proxy's own threads do all the work.
        """
        return self._stop

    def deadline(self) -> float | None:
        return None

    def run_ready(self) -> None:
        """Do nothing, because the proxy's own threads do the work."""

    def traffic(self) -> Mapping[str, Traffic]:
        return self._out.traffic()

    def close(self) -> None:
        """Reset the open connections. Those that have not ended after CLOSE_SECONDS are missing
        from the report.
        """
        self._closed.set()
        os.close(self._stopping)
        deadline = time.monotonic() + CLOSE_SECONDS
        left = not _join(self._thread, deadline)
        for handler in self._handlers.copy():
            left = not _join(handler, deadline) or left
        self._out.stop_counting()
        self._listener.close()
        # If any threads are left, keep this descriptor open, because these threads poll it after
        # their lookup or dial. After a close, its number could belong to another file.
        if not left:
            os.close(self._stop)

    def _accept_all(self) -> None:
        try:
            while not self._closed.is_set():
                self._accept()
        except copy.RunOverError:
            pass

    def _accept(self) -> None:
        copy.wait({self._listener.fileno(): select.POLLIN}, NO_TIMEOUT, stop=self._stop)
        if not self._slots.acquire(blocking=False):
            self.denials.add("limit", f"more than {self._max_connections} connections")
            self._slots.acquire()
        if self._closed.is_set():
            return
        try:
            end, _ = self._listener.accept()
        except BlockingIOError:
            self._slots.release()
        except OSError:
            self._slots.release()
            self._closed.wait(ACCEPT_RETRY_SECONDS)
        else:
            self._start(end)

    def _start(self, end: socket.socket) -> None:
        handler = threading.Thread(target=self._handle, args=(end,), daemon=True)
        self._handlers.add(handler)
        try:
            handler.start()
        except RuntimeError:  # no more threads can be started
            self._handlers.discard(handler)
            close_socket(end, reset=True)
            self._slots.release()

    def _handle(self, end: socket.socket) -> None:
        timeouts = self._out.timeouts
        connection = Connection(
            self._out,
            ClientSocket(end, stop=self._stop, send_seconds=timeouts.request_seconds),
            lambda server: copy.PolledCopy(
                end, server, stop=self._stop, idle_seconds=timeouts.idle_seconds
            ),
            password=self._password,
        )
        try:
            connection.serve()
        finally:
            end.close()
            self._closed.wait(connection.pause_seconds())
            self._handlers.discard(threading.current_thread())
            self._slots.release()


def _join(thread: threading.Thread, deadline: float) -> bool:
    thread.join(max(0.0, deadline - time.monotonic()))
    return not thread.is_alive()
