"""The caller's side of the Python API on Windows: one supervisor process for each run.

Nothing can be forked here, so nothing is kept warm: a supervisor is started for its run, with the
target's streams as its own and two pipes of the caller's. The end of the one that it reads from is
the end of the target, whatever becomes of the caller.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from corral.api import child_python, wire_format
from corral.errors import SupervisionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from corral.api.sandbox import Channel as AnyChannel
    from corral.plan.model import Plan


SERVE = "from corral.api.windows_supervisor import serve; serve(*map(int, sys.argv[1:]))"


class Supervisors:
    def launch(self, plan: Plan, stdio: tuple[int, int, int]) -> Channel:
        their_input, telling = os.pipe()
        hearing, their_output = os.pipe()
        try:
            process = _start(stdio, their_input, their_output)
        except BaseException:
            os.close(telling)
            os.close(hearing)
            raise
        finally:
            os.close(their_input)
            os.close(their_output)
        channel = Channel(process, telling, hearing)
        message = wire_format.encode(plan)
        try:
            channel.send(wire_format.add_header(message))
        except OSError as problem:
            channel.close()
            raise SupervisionError("the supervisor died before it heard the plan") from problem
        return channel

    def is_ready(self, channel: AnyChannel, seconds: float | None) -> bool:
        return isinstance(channel, Channel) and channel.wait(seconds)

    def close(self) -> None:
        """Every supervisor is its run's: there is nothing to end."""


class Channel:
    """Pipes cannot be waited for on Windows: a thread reads what the supervisor says."""

    def __init__(self, process: subprocess.Popen[bytes], telling: int, hearing: int) -> None:
        self._process = process
        self._telling = telling
        self._heard = b""
        self._ended = False
        self._change = threading.Condition()
        threading.Thread(target=self._listen, args=(hearing,), daemon=True).start()

    def fileno(self) -> int:
        """Negative once it is closed, as a socket's is."""
        return self._telling

    def send(self, data: bytes, /) -> int:
        left = data
        while left:
            left = left[os.write(self._telling, left) :]
        return len(data)

    def recv(self, size: int, /) -> bytes:
        with self._change:
            self._change.wait_for(lambda: self._heard or self._ended)
            found, self._heard = self._heard[:size], self._heard[size:]
            return found

    def wait(self, seconds: float | None) -> bool:
        """Whether a message waits, or the end, within that time."""
        with self._change:
            return bool(self._change.wait_for(lambda: self._heard or self._ended, seconds))

    def close(self) -> None:
        """The supervisor hears the end and takes the target along; both are gone afterwards."""
        if self._telling >= 0:
            fd, self._telling = self._telling, -1
            os.close(fd)
            self._process.wait()

    def _listen(self, fd: int) -> None:
        with open(fd, "rb", buffering=0) as hearing:
            while not self._ended:
                try:
                    chunk = hearing.read(65536)
                except OSError:
                    chunk = b""
                with self._change:
                    self._heard += chunk or b""
                    self._ended = not chunk
                    self._change.notify_all()


def _start(stdio: tuple[int, int, int], reads: int, writes: int) -> subprocess.Popen[bytes]:
    if sys.platform != "win32":
        raise OSError("only Windows needs this")
    import msvcrt

    handles = [msvcrt.get_osfhandle(fd) for fd in (reads, writes)]
    for handle in handles:
        os.set_handle_inheritable(handle, True)
    # The interpreter behind a virtual environment's, which would stand between us and it.
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
    """(our end, for the event loop, the target's end as a descriptor) of stream `number`."""
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
