"""Provide the caller's side of the zygote. A process starts its zygote at its first launch."""

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
from corral.platforms.posix import handover
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.api.sandbox import Channel, Streams

    Ancillary = list[tuple[int, int, array.array[int]]]
    from corral.plan.model import Plan

ENVIRONMENT = (
    "HOME", "XDG_", "TMPDIR", "PATH", "LANG", "LC_", "LD_", "DYLD_", "DBUS_SESSION_BUS_ADDRESS",
    "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY",
)  # fmt: skip
"""The zygote gets the variables whose names begin with one of these prefixes."""
SERVE = "from corral.api.zygote import serve; serve(int(sys.argv[1]))"


class Zygote:
    """Starts the zygote process when it is first needed, and again if the zygote has died.

    A fork of the caller starts its own zygote.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channels: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def launch(self, plan: Plan, stdio: Streams) -> socket.socket:
        """Make the zygote fork a supervisor for `plan`, and return the channel to the supervisor.

        If `stdio` is empty, the sandbox is a spare: it is set up now, and gets its command and
        streams later.
        """
        ours, theirs = socket.socketpair()
        self._channels.add(ours)
        try:
            with theirs:
                self._request((theirs.fileno(), *stdio))
            ours.sendall(wire_format.add_header(wire_format.encode_plan(plan)))
        except BaseException as problem:
            ours.close()
            if isinstance(problem, ConnectionError):
                raise SupervisionError("the supervisor died before it read the plan") from problem
            raise
        return ours

    def is_ready(self, channel: Channel, seconds: float | None) -> bool:
        """Return whether a message, or the end of the channel, arrives within `seconds`."""
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        return bool(poll.poll(None if seconds is None else int(seconds * 1000)))

    def _request(self, descriptors: tuple[int, ...]) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        with self._lock:
            try:
                self._send(ancillary)
            except ConnectionError:
                self._end()
                self._send(ancillary)

    def _send(self, ancillary: Ancillary) -> None:
        """Send descriptors. On macOS, wait until the zygote has received them."""
        connection = self._connection()
        connection.sendmsg([b"L"], ancillary)
        if wire_format.ACKNOWLEDGES and not connection.recv(1):
            raise ConnectionResetError("the zygote ended before it received a request")

    def _connection(self) -> socket.socket:
        if self._requests is None:
            ours, theirs = socket.socketpair()
            # Pass only these variables, so that the zygote and its forks do not get the caller's
            # secrets.
            kept = {name: os.environ[name] for name in os.environ if name.startswith(ENVIRONMENT)}
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, *child_python.build_arguments(SERVE, str(theirs.fileno()))],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    # With LD_BIND_NOW the zygote resolves all C functions when it starts. Otherwise
                    # each fork would resolve them itself, and get its own copy of the memory that
                    # this changes.
                    env={**kept, "LD_BIND_NOW": "1"},
                )
            self._requests = ours
        return self._requests

    def close(self) -> None:
        """End the zygote. Running sandboxes continue, because they have their own supervisors."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            # Kill the zygote. Closing the request channel might not end it, because a fork of the
            # caller may still have that channel open.
            try:
                self._process.kill()
                self._process.wait()
            except PermissionError:
                # The caller has changed its user in the meantime, so it may not kill the zygote.
                # The zygote ends when all copies of the request channel are closed. Do not wait
                # for it, because a fork of the caller may keep a copy open forever.
                self._process.returncode = 0
        self._requests = self._process = None

    def _forget(self) -> None:
        """Close the channels that this fork has inherited, because they belong to the parent."""
        # A thread of the parent may have held the old lock, and no thread of this fork would ever
        # release it.
        self._lock = threading.Lock()
        for channel in (self._requests, *self._channels):
            if channel is not None:
                channel.close()
        if self._process is not None:
            # The zygote is a child of the parent, so this fork cannot wait for it. With a return
            # code, `Popen` does not try to.
            self._process.returncode = 0
        self._requests = self._process = None


def hand_over(channel: Channel, plan: Plan, stdio: tuple[int, int, int]) -> bool:
    """Send a command to a spare, and return whether the spare accepted it. If not, the spare never
    starts it.
    """
    assert isinstance(channel, socket.socket)  # noqa: S101 - for type checkers
    try:
        handover.send(channel, wire_format.encode_plan(replace(plan, steps=())), stdio)
        return wire_format.read_message(channel.recv) == b"A"
    except OSError:
        return False


def end_spare(channel: Channel) -> None:
    """End a spare, and wait until the spare and its supervisor have ended."""
    assert isinstance(channel, socket.socket)  # noqa: S101 - for type checkers
    try:
        channel.shutdown(socket.SHUT_WR)
        while channel.recv(64):
            pass
    except OSError:
        pass  # the other end is closed, or the channel was closed after a fork
    channel.close()
