"""A warm, single-threaded interpreter that forks one supervisor a run for the Python API.

A caller may have threads, which a fork would break; this process never has any. It gets only four
descriptors for a run: the streams, and a channel on which the forked supervisor reads its plan. It
ends when its caller ends, and so does every supervisor: the end of the channel ends the target.
"""

from __future__ import annotations

import array
import gc
import os
import socket
import sys

from corral.abi.signal_numbers import FORWARDED
from corral.api import supervisor_process
from corral.platforms import current

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

DESCRIPTORS = 4


def serve(fd: int) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the supervisors
    current.load().warm_up()
    gc.disable()
    gc.freeze()
    with socket.socket(fileno=fd) as requests:
        while descriptors := _receive(requests):
            if os.fork() == 0:
                requests.close()
                _supervise(*descriptors)
            _close(descriptors)


def _receive(requests: socket.socket) -> list[int]:
    size = DESCRIPTORS * array.array("i").itemsize
    data, ancillary, _, _ = requests.recvmsg(1, socket.CMSG_SPACE(size))
    found = array.array("i")
    for _, _, raw in ancillary:
        found.frombytes(raw[: len(raw) - len(raw) % found.itemsize])
    return list(found) if data else []


def _supervise(stdin: int, stdout: int, stderr: int, channel: int) -> NoReturn:
    """Supervise one run in the fork, and exit."""
    import signal

    stdio = (stdin, stdout, stderr)
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        supervisor_process.run(
            channel, channel, stdio, signals=FORWARDED, close_stdio=lambda: _close(stdio)
        )
    finally:
        os._exit(1)  # a fork must never go on as the zygote


def _close(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        os.close(fd)
