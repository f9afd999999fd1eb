"""The handle of a running target, which `launch`, `run` and their asyncio versions use."""

from __future__ import annotations

import os
import sys
import threading
import time

from corral.abi.signal_numbers import SIGKILL, SIGTERM
from corral.api import wire_format
from corral.errors import SupervisionError
from corral.supervisor.report import Report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, BinaryIO, Protocol, Self

    from corral.plan.model import Plan

    Stream = int | IO[bytes] | None

    class Channel(Protocol):
        """A connection to a supervisor. Closing it ends the target."""

        def fileno(self) -> int: ...
        def send(self, data: bytes, /) -> int: ...
        def recv(self, size: int, /) -> bytes: ...
        def close(self) -> None: ...

    class Supervisors(Protocol):
        def launch(self, plan: Plan, stdio: tuple[int, int, int]) -> Channel: ...
        def is_ready(self, channel: Channel, seconds: float | None) -> bool: ...
        def close(self) -> None: ...


PIPE = -1
DEVNULL = -3
LAST_SIGNAL = 64
RUNNING = "the target is still running"


_supervisors: Supervisors
if sys.platform == "win32":
    from corral.api import windows_client

    _supervisors = windows_client.Supervisors()
else:
    from corral.api import zygote_client

    _supervisors = zygote_client.Zygote()


def end_zygote() -> None:
    """End the process that is kept warm for the next run; runs that were started go on."""
    _supervisors.close()


class Sandbox:
    """A context manager: leaving it stops the target, and nothing of the target stays.

    `stdin`, `stdout` and `stderr` are files where PIPE was asked for. `pid` is the target's on the
    host. `report` has what was asked, enforced and used, once the target has ended and was waited
    for.
    """

    def __init__(self, plan: Plan, *, stdin: Stream, stdout: Stream, stderr: Stream) -> None:
        self.plan = plan
        self.stdin: BinaryIO | None = None
        self.stdout: BinaryIO | None = None
        self.stderr: BinaryIO | None = None
        self._lock = threading.Lock()
        self.report: Report | None = None
        self._channel = self._start(stdin, stdout, stderr)
        try:
            self.pid = int(self._receive(b"B"))
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return a descriptor that is readable when the target has ended, for event loops."""
        return self._channel.fileno()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code of `corral run`; raise TimeoutError if the target still runs."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._lock.acquire(timeout=-1 if timeout is None else max(0, timeout)):
            raise TimeoutError(RUNNING)
        try:
            if self.report is None:
                self._wait_for_message(deadline)
                self.report = wire_format.decode(self._receive(b"R"), Report)
                self._channel.close()
            return self.report.outcome.exit_code
        finally:
            self._lock.release()

    def send_signal(self, number: int) -> None:
        """Send a signal to all processes of the target; kill those that stay for the grace time."""
        if not 0 < number <= LAST_SIGNAL:
            raise ValueError(f"{number} is not a signal")
        if self.report is None:
            try:
                self._channel.send(bytes([number]))
            except OSError:
                pass  # the target has ended; `wait` returns how

    def stop(self) -> int:
        """Send SIGTERM, after a grace time SIGKILL, and return the exit code."""
        self.send_signal(SIGTERM)
        return self.wait()

    def kill(self) -> int:
        self.send_signal(SIGKILL)
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.stdin is not None:
                _close_stream(self.stdin)
            self.stop()
        finally:
            self.close()

    def close(self) -> None:
        """Close the streams, and kill the target if it still runs."""
        self._close_streams()
        self._channel.close()

    def _start(self, stdin: Stream, stdout: Stream, stderr: Stream) -> Channel:
        ends: list[int] = []
        try:
            self.stdin, reading = _open_stream(stdin, 0, ends)
            self.stdout, writing = _open_stream(stdout, 1, ends)
            self.stderr, errors = _open_stream(stderr, 2, ends)
            return _supervisors.launch(self.plan, (reading, writing, errors))
        except BaseException:
            self._close_streams()
            raise
        finally:
            for fd in ends:
                os.close(fd)

    def _receive(self, kind: bytes) -> bytes:
        raw = wire_format.read_message(self._channel.recv)
        if raw[:1] == b"E":
            raise wire_format.decode_error(raw[1:])
        if raw[:1] != kind:
            raise SupervisionError("the supervisor is gone, and the target with it")
        return raw[1:]

    def _wait_for_message(self, deadline: float | None) -> None:
        if self._channel.fileno() < 0:
            raise SupervisionError("it was closed, or belongs to the process that launched it")
        left = None if deadline is None else max(0, deadline - time.monotonic())
        if not _supervisors.is_ready(self._channel, left):
            raise TimeoutError(RUNNING)

    def _close_streams(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                _close_stream(stream)


def _close_stream(stream: BinaryIO) -> None:
    try:
        stream.close()
    except BrokenPipeError:
        pass  # a target need not read everything


def _open_stream(wanted: Stream, number: int, ends: list[int]) -> tuple[BinaryIO | None, int]:
    """Return our end, if any, and the target's; add descriptors to close later to `ends`."""
    if wanted is None:
        return None, number
    if wanted == DEVNULL:
        ends.append(os.open(os.devnull, os.O_RDWR))
        return None, ends[-1]
    if wanted != PIPE:
        return None, wanted if isinstance(wanted, int) else wanted.fileno()
    read, write = os.pipe()
    ours, theirs = (write, read) if number == 0 else (read, write)
    ends.append(theirs)
    return open(ours, "wb", buffering=0) if number == 0 else open(ours, "rb"), theirs
