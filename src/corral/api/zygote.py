"""Run as the zygote, a warm process that forks one supervisor per run for the Python API.

A caller with threads cannot be forked safely, so this single-threaded process is forked instead.
For each run the zygote gets the target's three streams, and a channel on which the supervisor reads
its plan. A spare (a sandbox that waits for its command) gets its streams later. When the caller
ends, the zygote, its supervisors and their targets end too.

Forking takes longer if a process uses more memory, so this module imports little. It uses `_socket`
and `_signal`, because `socket` and `signal` would import `enum`, `collections` and `selectors`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import gc
import os
import sys

from corral.abi.signal_numbers import FORWARDED
from corral.api import supervisor_process, wire_format
from corral.platforms import current
from corral.platforms.posix import handover

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

DESCRIPTORS = 4


def serve(fd: int) -> None:
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # so the kernel reaps the supervisors
    current.load().warm_up()
    gc.disable()
    gc.freeze()
    requests = _socket.socket(fileno=fd)
    while descriptors := handover.receive_descriptors(requests, 1, DESCRIPTORS)[1]:
        if wire_format.ACKNOWLEDGES:
            requests.send(b"R")
        if len(descriptors) == 1:
            from corral.api import spare_supervisor  # noqa: F401 - once, not in every fork
        if os.fork() == 0:
            requests.close()
            _supervise(*descriptors)
        _close(descriptors)


def _supervise(channel: int, *streams: int) -> NoReturn:
    """Supervise one run in the fork, and exit. Without streams, the run is a spare, which waits for
    its command.
    """

    def receive() -> supervisor_process.Request | None:
        if not streams:
            from corral.api import spare_supervisor

            return spare_supervisor.receive_request(channel)
        stdin, stdout, stderr = streams
        return supervisor_process.read_request(channel, (stdin, stdout, stderr))

    try:
        os.setsid()
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        supervisor_process.run(channel, channel, receive, signals=FORWARDED, close_stdio=_close)
    finally:
        os._exit(1)  # otherwise the fork would return into the zygote's loop


def _close(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        os.close(fd)
