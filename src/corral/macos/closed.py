"""A way that leads nowhere: the tap that macOS has not, and ports of the target that stay shut."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.network.denials import Denials
    from corral.network.traffic import Traffic


class Closed:
    def __init__(self, denials: Denials) -> None:
        self.denials = denials
        self._pipe = os.pipe()

    def fileno(self) -> int:
        return self._pipe[0]

    def deadline(self) -> float | None:
        return None

    def run_ready(self) -> None:
        """Never ready: nothing is written to the pipe."""

    def close(self) -> None:
        for fd in self._pipe:
            os.close(fd)

    def traffic(self) -> Mapping[str, Traffic]:
        return {}
