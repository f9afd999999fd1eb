"""The three streams of a target: handles that it inherits, and nothing else.

Pipes and files are handed over as they are, so messages cost nothing. A console is not: a target
without one cannot use its handles. Neither is NUL, which an AppContainer may not be able to use,
nor nothing at all, which several runtimes do not survive. In place of these the target gets a pipe
that a thread of the supervisor's empties or fills.
"""

from __future__ import annotations

import _thread
import os
import sys

from corral.abi import win32_process as abi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import FileIO
    from threading import Thread

    from corral.abi.win32 import Handle

CHUNK = 65536


class Streams:
    """`handles` can be inherited and are closed once they were."""

    def __init__(self, stdio: tuple[int, int, int]) -> None:
        self.handles: list[Handle] = []
        self._input = -1
        self._feeding = _thread.allocate_lock()
        self._pumps: list[Thread] = []
        for number, fd in enumerate(stdio):
            self.handles.append(self._handle(number, fd))

    def values(self) -> tuple[int, int, int]:
        reading, writing, errors = (handle.value for handle in self.handles)
        return reading, writing, errors

    def let_go(self) -> None:
        for handle in self.handles:
            handle.close()

    def end_input(self) -> None:
        """End of file for the target, if its input comes through us and it reads it at all."""
        if self._feeding.acquire(blocking=False):
            fd, self._input = self._input, -1
            if fd >= 0:
                os.close(fd)
            self._feeding.release()

    def drain(self) -> None:
        """Until everything that the target said has been passed on; it must have ended."""
        self.end_input()
        for pump in self._pumps:
            pump.join()

    def _handle(self, number: int, fd: int) -> Handle:
        value = _os_handle(fd)
        if abi.GetFileType(value) in {abi.FILE_TYPE_DISK, abi.FILE_TYPE_PIPE}:
            return abi.duplicate(value, inheritable=True)
        read, write = os.pipe()
        theirs, ours = (read, write) if number == 0 else (write, read)
        try:
            return abi.duplicate(_os_handle(theirs), inheritable=True)
        finally:
            os.close(theirs)
            self._pump(number, ours, os.dup(fd))

    def _pump(self, number: int, ours: int, outside: int) -> None:
        import threading

        if number == 0:
            # Not waited for at the end: whoever sits at a console may never type again.
            self._input = ours
            threading.Thread(target=self._feed, args=(outside,), daemon=True).start()
        else:
            pump = threading.Thread(target=_pass_on, args=(ours, outside), daemon=True)
            pump.start()
            self._pumps.append(pump)

    def _feed(self, source: int) -> None:
        with open(source, "rb", buffering=0) as reading:
            while chunk := _read(reading):
                if not self._give(chunk):
                    return
        self.end_input()

    def _give(self, chunk: bytes) -> bool:
        """The descriptor is this thread's only while it is locked: closed, its number is reused."""
        with self._feeding:
            try:
                while chunk and self._input >= 0:
                    chunk = chunk[os.write(self._input, chunk) :]
            except OSError:
                return False  # the target reads no more
            return self._input >= 0


def _pass_on(source: int, sink: int) -> None:
    with open(source, "rb", buffering=0) as reading, open(sink, "wb", buffering=0) as writing:
        while chunk := _read(reading):
            try:
                while chunk:
                    chunk = chunk[writing.write(chunk) :]
            except OSError:
                continue  # nobody looks any more; the target shall not wait for that


def _read(source: FileIO) -> bytes:
    try:
        return source.read(CHUNK) or b""
    except OSError:
        return b""


def _os_handle(fd: int) -> int:
    if sys.platform != "win32":
        raise OSError("handles exist on Windows only")
    import msvcrt

    return msvcrt.get_osfhandle(fd)
