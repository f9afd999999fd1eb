"""Store a run's denials for `corral why`. Their texts are masked already, by `Denials`."""

from __future__ import annotations

import time

from corral.denials import kept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.denials.records import Denial
    from corral.denials.server_id import ServerId


class KeptReport:
    def __init__(self, server: ServerId) -> None:
        self._run = kept.LiveRun(server)

    def add(self, denial: Denial) -> None:
        self._run.add(denial, time.time())

    def end(self, denials: Sequence[Denial]) -> None:
        self._run.end(denials, time.time())
