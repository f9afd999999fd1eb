"""The caller's side of the zygote: one zygote a process, started at the first launch."""

from __future__ import annotations

import array
import atexit
import os
import select
import socket
import subprocess
import sys
import threading
import weakref

from corral.api import own_python, wire
from corral.errors import SupervisionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.api.sandbox import Channel
    from corral.plan.model import Plan

SERVE = "from corral.api.zygote import serve; serve(int(sys.argv[1]))"


class Zygote:
    """Starts its process when first needed, again after a fork or a death of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channels: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        if sys.platform != "win32":
            os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def launch(self, plan: Plan, stdio: tuple[int, int, int]) -> socket.socket:
        """Have a supervisor forked for `plan`; returns the channel to it."""
        ours, theirs = socket.socketpair()
        self._channels.add(ours)
        try:
            with theirs:
                self._request((*stdio, theirs.fileno()))
            message = wire.encode(plan)
            ours.sendall(wire.framed(message))
        except BaseException as problem:
            ours.close()
            if isinstance(problem, ConnectionError):
                raise SupervisionError("the supervisor died before it heard the plan") from problem
            raise
        return ours

    def is_ready(self, channel: Channel, seconds: float | None) -> bool:
        """Whether a message waits, or the end, within that time."""
        if sys.platform == "win32":
            raise OSError("poll is POSIX only")
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        return bool(poll.poll(None if seconds is None else int(seconds * 1000)))

    def _request(self, descriptors: tuple[int, ...]) -> None:
        if sys.platform == "win32":
            raise OSError("descriptors travel over unix sockets only")
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        with self._lock:
            try:
                self._connection().sendmsg([b"L"], ancillary)
            except ConnectionError:
                self._end()
                self._connection().sendmsg([b"L"], ancillary)

    def _connection(self) -> socket.socket:
        if self._requests is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, *own_python.arguments(SERVE, str(theirs.fileno()))],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            self._requests = ours
        return self._requests

    def close(self) -> None:
        """End it; running sandboxes have their own supervisors and stay."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            # Not by end of file alone: a fork of ours that execs nothing may hold the other end.
            self._process.kill()
            self._process.wait()
        self._requests = self._process = None

    def _forget(self) -> None:
        """In a fork of the caller: its zygote and sandboxes are the caller's, and end with it."""
        self._lock = threading.Lock()  # a thread that is not here may have held the old one
        for channel in (self._requests, *self._channels):
            if channel is not None:
                channel.close()
        if self._process is not None:
            self._process.returncode = 0  # nobody's child here, so nobody's to wait for
        self._requests = self._process = None
