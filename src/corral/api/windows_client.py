"""Provide the caller's side of the Python API on Windows: one supervisor process for each run.

The supervisor gets the target's streams and two pipes. When the pipe from the caller closes, the
supervisor ends the target.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import BinaryIO

from corral.api import child_python, wire_format
from corral.errors import SupervisionError
from corral.plan.model import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.api import sandbox

SERVE = "from corral.api.windows_supervisor import serve; serve(*map(int, sys.argv[1:]))"


class Supervisors:
    def launch(self, plan: Plan, stdio: sandbox.Streams) -> Channel:
        if not stdio:
            raise ValueError("Windows has no spare sandboxes")
        their_input, writing = os.pipe()
        reading, their_output = os.pipe()
        try:
            process = _start(stdio, their_input, their_output)
        except BaseException:
            os.close(writing)
            os.close(reading)
            raise
        finally:
            os.close(their_input)
            os.close(their_output)
        channel = Channel(process, writing, reading)
        try:
            channel.send(wire_format.add_header(wire_format.encode_plan(plan)))
        except OSError as problem:
            channel.close()
            raise SupervisionError("the supervisor died before it read the plan") from problem
        return channel

    def is_ready(self, channel: sandbox.Channel, seconds: float | None) -> bool:
        return isinstance(channel, Channel) and channel.wait(seconds)

    def close(self) -> None:
        """Do nothing, because on Windows no process is kept ready for the next run."""


class Channel:
    """Exchanges messages with a supervisor.

    A thread reads the supervisor's pipe, because Windows cannot wait for data on a pipe with a
    timeout.
    """

    def __init__(self, process: subprocess.Popen[bytes], writing: int, reading: int) -> None:
        self._process = process
        self._writing = writing
        self._received = b""
        self._ended = False
        self._change = threading.Condition()
        threading.Thread(target=self._receive, args=(reading,), daemon=True).start()

    def fileno(self) -> int:
        """Return the descriptor of the pipe to the supervisor, or -1 after `close`."""
        return self._writing

    def send(self, data: bytes, /) -> int:
        left = data
        while left:
            left = left[os.write(self._writing, left) :]
        return len(data)

    def recv(self, size: int, /) -> bytes:
        with self._change:
            self._change.wait_for(lambda: self._received or self._ended)
            found, self._received = self._received[:size], self._received[size:]
            return found

    def wait(self, seconds: float | None) -> bool:
        """Return whether a message, or the end of the channel, arrives within `seconds`."""
        with self._change:
            return bool(self._change.wait_for(lambda: self._received or self._ended, seconds))

    def close(self) -> None:
        """Close the channel, and wait until the supervisor and its target have ended."""
        if self._writing >= 0:
            fd, self._writing = self._writing, -1
            os.close(fd)
            self._process.wait()

    def _receive(self, fd: int) -> None:
        with open(fd, "rb", buffering=0) as file:
            while not self._ended:
                try:
                    chunk = file.read(65536)
                except OSError:
                    chunk = b""
                with self._change:
                    self._received += chunk or b""
                    self._ended = not chunk
                    self._change.notify_all()


def _start(stdio: tuple[int, int, int], reads: int, writes: int) -> subprocess.Popen[bytes]:
    if sys.platform != "win32":
        raise OSError("this way of starting a supervisor works only on Windows")
    import msvcrt

    handles = [msvcrt.get_osfhandle(fd) for fd in (reads, writes)]
    for handle in handles:
        os.set_handle_inheritable(handle, True)
    # In a virtual environment, sys.executable is only a launcher, which would start the real Python
    # as a second process. So start the real Python directly.
    program = getattr(sys, "_base_executable", "") or sys.executable
    return subprocess.Popen(
        [program, *child_python.build_arguments(SERVE, *map(str, handles))],
        stdin=stdio[0],
        stdout=stdio[1],
        stderr=stdio[2],
        startupinfo=subprocess.STARTUPINFO(lpAttributeList={"handle_list": handles}),
        creationflags=subprocess.CREATE_NO_WINDOW,
    )


def pipe(number: int) -> tuple[BinaryIO, int]:
    """Create a pipe for stream `number`. Return the caller's end, which is overlapped, and the
    target's end.
    """
    if sys.platform == "win32":
        import msvcrt
        from asyncio import windows_utils

        if number == 0:
            theirs, ours = windows_utils.pipe(overlapped=(False, True), duplex=True)
        else:
            ours, theirs = windows_utils.pipe(overlapped=(True, False))
        end: BinaryIO = windows_utils.PipeHandle(ours)  # type: ignore[assignment]
        return end, msvcrt.open_osfhandle(theirs, os.O_NOINHERIT)
    raise OSError("only Windows has overlapped pipes")
