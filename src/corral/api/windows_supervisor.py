"""A supervisor of the Python API: reads its plan from the caller, runs it, tells how it went."""

from __future__ import annotations

import os
import sys

from corral.api import supervisor_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def serve(reads: int, writes: int) -> NoReturn:
    """`reads` and `writes` are inherited handles; nothing that is started here inherits them."""
    streams = (0, 1, 2)
    hearing, telling = _descriptor(reads), _descriptor(writes)
    supervisor_process.run(hearing, telling, streams, signals=(), close_stdio=_close_stdio)


def _close_stdio() -> None:
    """The streams are the target's: the caller must see them close when the target closes them."""
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
