"""Pipes that asyncio can wait for on Windows, where ordinary ones cannot be waited for."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO


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
