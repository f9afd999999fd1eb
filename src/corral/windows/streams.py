"""The three streams of a target: handles that it inherits, and nothing else.

Pipes and files are handed over as they are, so messages cost nothing. A console is not: a target
without one cannot use its handles. Neither is NUL, which an AppContainer may not be able to use,
nor nothing at all, which several runtimes do not survive. In place of these the target gets a pipe
that a thread of the supervisor's empties or fills.
"""

from __future__ import annotations

import os
import sys

from corral.abi import win32_process as abi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from threading import Thread

    from corral.abi.win32 import Handle

CHUNK = 65536


class Streams:
    """`handles` can be inherited and are closed once they were."""

    def __init__(self, stdio: tuple[int, int, int]) -> None:
        self.handles: list[Handle] = []
        self._input = -1
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
        """End of file for the target, if its input comes through us."""
        if self._input >= 0:
            fd, self._input = self._input, -1
            os.close(fd)

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
            self._input = ours
        ends = (outside, ours) if number == 0 else (ours, outside)
        pump = threading.Thread(target=self._pass_on, args=(number, *ends), daemon=True)
        pump.start()
        if number:  # whoever sits at a console may never type again
            self._pumps.append(pump)

    def _pass_on(self, number: int, source: int, sink: int) -> None:
        try:
            while chunk := os.read(source, CHUNK):
                while chunk:
                    chunk = chunk[os.write(sink, chunk) :]
        except OSError:
            pass  # one of the two sides is gone
        if number == 0:
            self.end_input()
        else:
            os.close(source)


def _os_handle(fd: int) -> int:
    if sys.platform != "win32":
        raise OSError("handles exist on Windows only")
    import msvcrt

    return msvcrt.get_osfhandle(fd)
