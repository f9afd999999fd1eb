"""The caller's side of the zygote: each process has one, started at its first launch."""

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

from corral.api import child_python, wire_format
from corral.errors import SupervisionError

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.api.sandbox import Channel
    from corral.plan.model import Plan

SERVE = "from corral.api.zygote import serve; serve(int(sys.argv[1]))"


class Zygote:
    """Starts its process when it is first needed, and again after a fork or when it died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channels: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def launch(self, plan: Plan, stdio: tuple[int, int, int]) -> socket.socket:
        """Let the zygote fork a supervisor for `plan`; return the channel to the supervisor."""
        ours, theirs = socket.socketpair()
        self._channels.add(ours)
        try:
            with theirs:
                self._request((*stdio, theirs.fileno()))
            ours.sendall(wire_format.add_header(wire_format.encode(plan)))
        except BaseException as problem:
            ours.close()
            if isinstance(problem, ConnectionError):
                raise SupervisionError("the supervisor died before it heard the plan") from problem
            raise
        return ours

    def is_ready(self, channel: Channel, seconds: float | None) -> bool:
        """Return whether a message, or the end of the channel, arrives within that time."""
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        return bool(poll.poll(None if seconds is None else int(seconds * 1000)))

    def _request(self, descriptors: tuple[int, ...]) -> None:
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
                    [sys.executable, *child_python.build_arguments(SERVE, str(theirs.fileno()))],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            self._requests = ours
        return self._requests

    def close(self) -> None:
        """End the zygote; running sandboxes have supervisors of their own and go on."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            # End of file is not enough: a fork of ours may still have the other end open.
            self._process.kill()
            self._process.wait()
        self._requests = self._process = None

    def _forget(self) -> None:
        """Close what a fork inherits: the zygote and the sandboxes belong to its parent."""
        self._lock = threading.Lock()  # the old one may be locked by a thread that was not forked
        for channel in (self._requests, *self._channels):
            if channel is not None:
                channel.close()
        if self._process is not None:
            self._process.returncode = 0  # not a child of this process: do not wait for it
        self._requests = self._process = None
