"""Run as a supervisor of the Python API: read a plan from the caller, run it, report the result."""

import os
import sys
from typing import NoReturn

from corral.api import supervisor_process


def serve(reads: int, writes: int) -> NoReturn:
    """Supervise one run. `reads` and `writes` are the handles of the pipes from and to the caller.
    The target does not inherit them.
    """
    reading, writing = _descriptor(reads), _descriptor(writes)
    supervisor_process.run(
        reading,
        writing,
        lambda: supervisor_process.read_request(reading, (0, 1, 2)),
        signals=(),
        close_stdio=lambda _: _close_streams(),
    )


def _close_streams() -> None:
    """Close this process's copies of the target's streams, so that the caller notices when the
    target closes a stream.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd, inheritable=False)
    os.close(null)


def _descriptor(handle: int) -> int:
    if sys.platform != "win32":
        raise OSError("handles exist on Windows only")
    import msvcrt

    os.set_handle_inheritable(handle, False)
    return msvcrt.open_osfhandle(handle, os.O_BINARY | os.O_NOINHERIT)
