"""Provide the handle for a running target. `launch`, `run` and their asyncio versions use it."""

from __future__ import annotations

import os
import sys
import threading
import time

from corral.abi.signal_numbers import SIGKILL, SIGTERM
from corral.api import wire_format
from corral.errors import SupervisionError
from corral.platforms.contract import Ending
from corral.record import replace
from corral.supervisor import secret_values  # noqa: F401 - for `build_report`
from corral.supervisor.report import Report, build_report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, BinaryIO, Generic, Literal, Protocol, Self

    # corral does not depend on this package: only type checkers read this line, and all of them
    # include the package.
    from typing_extensions import TypeVar

    from corral.plan.model import Plan

    Stream = int | IO[bytes] | None
    Stdin = TypeVar("Stdin", covariant=True, default=BinaryIO | None)  # noqa: PLC0105
    Stdout = TypeVar("Stdout", covariant=True, default=BinaryIO | None)  # noqa: PLC0105
    Stderr = TypeVar("Stderr", covariant=True, default=BinaryIO | None)  # noqa: PLC0105

    class Channel(Protocol):
        """A connection to a supervisor. Closing it ends the target."""

        def fileno(self) -> int: ...
        def send(self, data: bytes, /) -> int: ...
        def recv(self, size: int, /) -> bytes: ...
        def close(self) -> None: ...

    Streams = tuple[int, int, int] | tuple[()]  # empty for a spare, which gets its streams later

    class Supervisors(Protocol):
        def launch(self, plan: Plan, stdio: Streams) -> Channel: ...
        def is_ready(self, channel: Channel, seconds: float | None) -> bool: ...
        def close(self) -> None: ...

    Connect = Callable[[Plan, tuple[int, int, int]], Channel]


if not TYPE_CHECKING:
    Stdin = Stdout = Stderr = None

    class Generic:
        """A stand-in for `typing.Generic` at run time. The real class is not used, because
        importing `typing` takes longer than a launch.
        """

        def __class_getitem__(cls, _: object) -> type:
            return cls


PIPE: Literal[-1] = -1
DEVNULL = -3
LAST_SIGNAL = 64
RUNNING = "the target is still running"


supervisors: Supervisors
if sys.platform == "win32":
    from corral.api import windows_client

    supervisors = windows_client.Supervisors()
else:
    from corral.api import zygote_client

    supervisors = zygote_client.Zygote()


def end_zygote() -> None:
    """End the process that corral keeps ready for the next run. Running sandboxes continue."""
    supervisors.close()


class Sandbox(Generic[Stdin, Stdout, Stderr]):
    """Controls a running target. As a context manager, it stops all the target's processes at exit.

    `stdin`, `stdout` and `stderr` are files if PIPE was given for them, otherwise None. `pid` is
    the target's process id on the host. `report` lists the controls (walls and limits) that were
    requested, how each was enforced, and the resource usage. `report` is None until `wait` has seen
    that the target has ended.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        stdin: Stream,
        stdout: Stream,
        stderr: Stream,
        connect: Connect | None = None,
    ) -> None:
        """Start the target. `connect` returns the channel to the target's supervisor. The default
        is to start a new supervisor.
        """
        self.plan = plan
        self.stdin: Stdin = None  # type: ignore[assignment]
        self.stdout: Stdout = None  # type: ignore[assignment]
        self.stderr: Stderr = None  # type: ignore[assignment]
        self._lock = threading.Lock()
        self.report: Report | None = None
        self._connect = connect or supervisors.launch
        self._channel = self._start(stdin, stdout, stderr)
        try:
            self.pid = int(self._receive(b"B"))
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return a descriptor for event loops. It becomes readable when the target has ended. On
        Windows event loops cannot wait for it, because it is the write end of a pipe.
        """
        return self._channel.fileno()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the target has ended, and return the exit code that `corral run` would return.
        Raise TimeoutError if the target is still running after `timeout` seconds, and
        SupervisionError if this sandbox was closed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._lock.acquire(timeout=-1 if timeout is None else max(0, timeout)):
            raise TimeoutError(RUNNING)
        try:
            if self.report is None:
                if self._channel.fileno() < 0:
                    why = "this sandbox was closed, or was launched by another process"
                    raise SupervisionError(why)
                left = None if deadline is None else max(0, deadline - time.monotonic())
                if not supervisors.is_ready(self._channel, left):
                    raise TimeoutError(RUNNING)
                ending = wire_format.decode(self._receive(b"R"), Ending)
                self.report = build_report(self.plan, ending)
                self._channel.close()
            return self.report.outcome.exit_code
        finally:
            self._lock.release()

    def send_signal(self, number: int) -> None:
        """Send a signal to the target's processes. Every signal begins a stop: after the grace
        period the supervisor kills the processes that are still running.
        """
        if not 0 < number <= LAST_SIGNAL:
            raise ValueError(f"{number} is not a signal: use a number from 1 to {LAST_SIGNAL}")
        if self.report is None:
            try:
                self._channel.send(bytes([number]))
            except OSError:
                pass  # the target has ended; `wait` returns its exit code

    def stop(self) -> int:
        """Send SIGTERM, then SIGKILL after a grace period, and return the exit code."""
        self.send_signal(SIGTERM)
        return self.wait()

    def kill(self) -> int:
        """Send SIGKILL, and return the exit code."""
        self.send_signal(SIGKILL)
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            _close_stream(self.stdin)
            self.stop()
        finally:
            self.close()

    def close(self) -> None:
        """Close the streams, and kill the target if it is still running."""
        self._close_streams()
        self._channel.close()

    def _start(self, stdin: Stream, stdout: Stream, stderr: Stream) -> Channel:
        ends: list[int] = []
        try:
            # Any stream may be None. The `type: ignore` comments hide this from type checkers,
            # which learn from the overloads of `launch` which streams exist.
            self.stdin, reading = _open_stream(stdin, 0, ends)  # type: ignore[assignment]
            self.stdout, writing = _open_stream(stdout, 1, ends)  # type: ignore[assignment]
            self.stderr, errors = _open_stream(stderr, 2, ends)  # type: ignore[assignment]
            wanted = (stdin, stdout, stderr)
            private = tuple(number for number, stream in enumerate(wanted) if stream == PIPE)
            plan = replace(self.plan, private_streams=private)
            return self._connect(plan, (reading, writing, errors))
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
            raise SupervisionError("the supervisor and its target have ended")
        return raw[1:]

    def _close_streams(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            _close_stream(stream)


def _close_stream(stream: object) -> None:
    try:
        if stream is not None:
            stream.close()  # type: ignore[attr-defined]
    except BrokenPipeError:
        pass  # the target closed its stdin before it read everything, which is not an error


def _open_stream(wanted: Stream, number: int, ends: list[int]) -> tuple[BinaryIO | None, int]:
    """Return the two ends of a stream: the caller's end, which may be None, and the target's end.
    Add to `ends` the descriptors that the caller has to close once the target has them.
    """
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
