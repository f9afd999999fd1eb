"""Signals to corral, read from a descriptor. They are blocked, so none is lost between fork and
watch.
"""

from __future__ import annotations

import os

from corral.abi import linux as abi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SIGINFO = 128  # struct signalfd_siginfo, whose first word is the number


class Signals:
    def __init__(self, numbers: Sequence[int]) -> None:
        abi.sigprocmask(abi.SIG_BLOCK, numbers)
        self._fd = abi.signalfd(numbers)

    def fileno(self) -> int:
        return self._fd

    def read(self) -> list[int]:
        raw = os.read(self._fd, SIGINFO * 16)
        starts = range(0, len(raw), SIGINFO)
        return [int.from_bytes(raw[at : at + 4], "little") for at in starts]
