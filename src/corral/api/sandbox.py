"""A running target, seen from Python: `launch`, `run` and their async twins are made of this."""

from __future__ import annotations

import os
import sys
import threading
import time

from corral.abi.signal_numbers import SIGKILL, SIGTERM
from corral.api import wire
from corral.errors import SupervisionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, BinaryIO, Protocol, Self

    from corral.plan.model import Plan
    from corral.supervisor.report import Report

    Stream = int | IO[bytes] | None

    class Channel(Protocol):
        """To the supervisor: signals go out, messages come in; its end is the target's end."""

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


def _supervisors() -> Supervisors:
    """Who starts a process of corral's own for each run."""
    if sys.platform == "win32":
        from corral.api.windows_client import Supervisors

        return Supervisors()
    from corral.api.zygote_client import Zygote

    return Zygote()


_zygote = _supervisors()


def let_go() -> None:
    """Keep nothing warm for a next run: the process that this spares lives until the caller's end.

    Runs that were started stay as they are, and a next one starts afresh.
    """
    _zygote.close()


class Sandbox:
    """A context manager: leaving it stops the target, and nothing of it stays.

    `stdin`, `stdout` and `stderr` are files where PIPE was asked for. `pid` is the target's, as the
    host counts.
    """

    def __init__(self, plan: Plan, *, stdin: Stream, stdout: Stream, stderr: Stream) -> None:
        self.plan = plan
        self.stdin: BinaryIO | None = None
        self.stdout: BinaryIO | None = None
        self.stderr: BinaryIO | None = None
        self._lock = threading.Lock()
        self._report: Report | None = None
        self._channel = self._start(stdin, stdout, stderr)
        try:
            self.pid = int(self._message(b"B"))
        except BaseException:
            self.close()
            raise

    @property
    def report(self) -> Report | None:
        """What was asked, enforced and used: there once the target has ended."""
        return self._report

    def fileno(self) -> int:
        """Readable when the target has ended: for event loops."""
        return self._channel.fileno()

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, as `corral run` would give it; TimeoutError if it is still running."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._lock.acquire(timeout=-1 if timeout is None else max(0, timeout)):
            raise TimeoutError(RUNNING)
        try:
            if self._report is None:
                self._until(deadline)
                self._report = wire.decode_report(self._message(b"R"))
                self._channel.close()
            return self._report.outcome.exit_code
        finally:
            self._lock.release()

    def send_signal(self, number: int) -> None:
        """To every process of the target. What does not obey in the grace time is killed."""
        if not 0 < number <= LAST_SIGNAL:
            raise ValueError(f"{number} is no signal")
        if self._report is None:
            try:
                self._channel.send(bytes([number]))
            except OSError:
                pass  # it has ended; `wait` will tell

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
                self._shut(self.stdin)
            self.stop()
        finally:
            self.close()

    def close(self) -> None:
        """Let go of it: of its streams, and of the target, which is killed if it still runs."""
        self._shut_streams()
        self._channel.close()

    def _start(self, stdin: Stream, stdout: Stream, stderr: Stream) -> Channel:
        ends: list[int] = []
        try:
            self.stdin, reading = _stream(stdin, 0, ends)
            self.stdout, writing = _stream(stdout, 1, ends)
            self.stderr, errors = _stream(stderr, 2, ends)
            return _zygote.launch(self.plan, (reading, writing, errors))
        except BaseException:
            self._shut_streams()
            raise
        finally:
            for fd in ends:
                os.close(fd)

    def _message(self, kind: bytes) -> bytes:
        raw = receive(self._channel)
        if raw[:1] == b"E":
            raise wire.decode_problem(raw[1:])
        if raw[:1] != kind:
            raise SupervisionError("the supervisor is gone, and the target with it")
        return raw[1:]

    def _until(self, deadline: float | None) -> None:
        if self._channel.fileno() < 0:
            raise SupervisionError("it was closed, or belongs to the process that launched it")
        left = None if deadline is None else max(0, deadline - time.monotonic())
        if not _zygote.is_ready(self._channel, left):
            raise TimeoutError(RUNNING)

    def _shut_streams(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                self._shut(stream)

    @staticmethod
    def _shut(stream: BinaryIO) -> None:
        try:
            stream.close()
        except BrokenPipeError:
            pass  # what was not read is nobody's error


def _stream(wanted: Stream, number: int, ends: list[int]) -> tuple[BinaryIO | None, int]:
    """(our end, if any, the target's end); what is handed over goes to `ends`."""
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
    return (open(ours, "wb" if number == 0 else "rb", buffering=0 if number == 0 else -1)), theirs


def receive(channel: Channel) -> bytes:
    """One message of a supervisor, or nothing when it is gone."""
    header = _exactly(channel, wire.HEADER)
    return _exactly(channel, int.from_bytes(header, "little")) if header else b""


def _exactly(channel: Channel, size: int) -> bytes:
    found = b""
    while len(found) < size:
        try:
            chunk = channel.recv(size - len(found))
        except ConnectionError:
            chunk = b""  # it died with something of ours unread
        if not chunk:
            return b""
        found += chunk
    return found
