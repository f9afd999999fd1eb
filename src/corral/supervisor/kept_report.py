"""Store a run's denials for `corral why`, without secrets."""

from __future__ import annotations

import time

from corral.denials import kept
from corral.policy.variables import masked
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.denials.records import Denial


class KeptReport:
    def __init__(self, command: Sequence[str]) -> None:
        self._run = kept.LiveRun(command)

    def add(self, denial: Denial) -> None:
        self._run.add(hide_secrets(denial), time.time())

    def end(self, denials: Sequence[Denial]) -> None:
        self._run.end(tuple(map(hide_secrets, denials)), time.time())


def hide_secrets(denial: Denial) -> Denial:
    """Mask text that looks like a secret. Drop the flag then, because it contains the same text."""
    destination, why = masked((denial.destination,))[0], masked((denial.why,))[0]
    allow = denial.allow if destination == denial.destination else ""
    return replace(denial, destination=destination, why=why, allow=allow)
