"""Give a target its three standard streams. The target inherits no other handles.

Pipes and files are inherited directly, so messages take no extra time. Three kinds of streams are
replaced by a pipe that one of the supervisor's threads serves:

- a console, because the target does not share corral's console and so cannot use its handles
- NUL, because an AppContainer may be unable to open it
- a missing stream, because several runtimes do not start without one
"""

import os
import sys
import threading
from io import FileIO

from corral.abi import win32_process as abi
from corral.abi.win32 import Handle

CHUNK = 65536


class Streams:
    """Makes the three handles that the target inherits. `close_handles` closes them in this
    process.
    """

    def __init__(self, stdio: tuple[int, int, int]) -> None:
        self.handles: list[Handle] = []
        self._input = -1
        self._writing = threading.Lock()
        self._threads: list[threading.Thread] = []
        for number, fd in enumerate(stdio):
            self.handles.append(self._handle(number, fd))

    def values(self) -> tuple[int, int, int]:
        reading, writing, errors = (handle.value for handle in self.handles)
        return reading, writing, errors

    def close_handles(self) -> None:
        for handle in self.handles:
            handle.close()

    def end_input(self) -> None:
        """Close the target's input if this process writes to it. Do nothing while another thread is
        writing, because the write may be blocked, and this method must not wait for it.
        """
        if self._writing.acquire(blocking=False):
            fd, self._input = self._input, -1
            if fd >= 0:
                os.close(fd)
            self._writing.release()

    def drain(self) -> None:
        """Wait until all output has been written. The target must have ended."""
        self.end_input()
        for thread in self._threads:
            thread.join()

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
            self._start_copying(number, ours, os.dup(fd))

    def _start_copying(self, number: int, ours: int, outside: int) -> None:
        if number == 0:
            # `drain` does not join this thread, which may wait forever for a user at a console.
            self._input = ours
            threading.Thread(target=self._copy_input, args=(outside,), daemon=True).start()
        else:
            thread = threading.Thread(target=_copy_output, args=(ours, outside), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _copy_input(self, source: int) -> None:
        with open(source, "rb", buffering=0) as reading:
            while chunk := _read(reading):
                if not self._write_input(chunk):
                    return
        self.end_input()

    def _write_input(self, chunk: bytes) -> bool:
        """Write to the target's input. Return False if the input is closed.

        The lock keeps `end_input` from closing the descriptor during the write. Otherwise a new
        file could get the same number, and receive the bytes.
        """
        with self._writing:
            try:
                while chunk and self._input >= 0:
                    chunk = chunk[os.write(self._input, chunk) :]
            except OSError:
                return False  # the target has closed its input
            return self._input >= 0


def _copy_output(source: int, sink: int) -> None:
    with open(source, "rb", buffering=0) as reading, open(sink, "wb", buffering=0) as writing:
        while chunk := _read(reading):
            try:
                while chunk:
                    chunk = chunk[writing.write(chunk) :]
            except OSError:
                continue  # the reader has ended; keep reading, so that the target does not block


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
