"""Give the target a pipe in place of each standard stream that is a file.

Without Landlock, a target can open the file behind a stream again, by a path such as
`/proc/self/fd/1`, and get more rights than corral gave it. It could then write to its stdin file.
If its stderr is a log file, it could read the lines that other programs wrote there. So it gets
only pipes, and processes outside the sandbox copy the data between each pipe and its file.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.abi.signal_numbers import SIGKILL
from corral.platforms import steps
from corral.record import record, replace

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from corral.platforms.contract import Stdio

CHUNK = 1 << 16


@record
class Relay:
    stdio: Stdio
    ends: list[int]  # the target's pipe ends, still open in this process
    readers: list[int]  # pids of processes that copy a file to the target's stdin
    writers: list[int]  # pids of processes that copy the target's output to files

    def started(self) -> None:
        """Close this process's copies of the pipe ends that the target now has."""
        while self.ends:
            os.close(self.ends.pop())

    def release(self) -> None:
        """Kill the processes that copy a file to the target's stdin. Wait for those that copy its
        output: they end when they have written everything, because the target has ended.
        """
        self.started()
        for pid in self.readers:
            os.kill(pid, SIGKILL)
        for pid in (*self.readers, *self.writers):
            os.waitpid(pid, 0)


def relay_files(stdio: Stdio) -> Relay:
    """Start a copying process for each stream that is a regular file. Return the streams with pipes
    in place of these files.
    """
    chosen = list(stdio)
    relay = Relay(stdio=stdio, ends=[], readers=[], writers=[])
    pipes: dict[tuple[int, int], int] = {}
    for number, fd in enumerate(stdio):
        try:
            seen = os.fstat(fd)
        except OSError:
            continue  # the stream is closed
        if not stat.S_ISREG(seen.st_mode):
            continue
        if number == 0:
            chosen[0] = _start(relay, fd, feeds=True)
            continue
        # If stdout and stderr are the same file, as after `2>&1`, use a single pipe for both. With
        # two pipes the order of the lines could change.
        file = (seen.st_dev, seen.st_ino)
        if file not in pipes:
            pipes[file] = _start(relay, fd, feeds=False)
        chosen[number] = pipes[file]
    return replace(relay, stdio=(chosen[0], chosen[1], chosen[2]))


def _start(relay: Relay, file: int, *, feeds: bool) -> int:
    """Start a copying process. Return the target's end of its pipe."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _copy(*((file, write_end) if feeds else (read_end, file)))
    ours, theirs = (write_end, read_end) if feeds else (read_end, write_end)
    os.close(ours)
    relay.ends.append(theirs)
    (relay.readers if feeds else relay.writers).append(pid)
    return theirs


def _copy(source: int, destination: int) -> NoReturn:
    try:
        # Leave the terminal's session, so that Ctrl-C does not end this process: it still has to
        # write the target's last lines.
        os.setsid()
        steps.keep_only({source, destination})
        while chunk := os.read(source, CHUNK):
            while chunk:
                chunk = chunk[os.write(destination, chunk) :]
    finally:
        os._exit(0)
