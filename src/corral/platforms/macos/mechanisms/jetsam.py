"""Let the kernel kill the target's first program when its physical footprint exceeds a limit
(jetsam).

`spawn` sets the limit when it executes the target. The limit ends when the target executes another
program. So a target can evade it, and the report calls it "cooperative". This limit costs no CPU
time, so it is used if the policy states no memory limit. A stated limit is enforced by sampling
instead.
"""

from __future__ import annotations

from corral.abi.signal_numbers import SIGKILL
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage

MEGABYTE = 1 << 20


@record
class Jetsam:
    name = "jetsam"
    megabytes: int
    stage: Stage = "clone"
    verify = unverified

    def describe(self) -> str:
        return f"the kernel kills the first program at a footprint of {self.megabytes} MiB"

    def apply(self, results: Results) -> None:
        results.add(FootprintLimit(megabytes=self.megabytes))


@record
class FootprintLimit:
    """The memory limit of the target, which `spawn` passes to exec."""

    megabytes: int

    def has_killed(self, status: int | None, memory: int) -> bool:
        """Return whether this limit probably killed a target with this wait status and peak memory.

        The kernel does not report why a process got SIGKILL. If the peak was more than a tenth
        below the limit, assume that another process killed the target.
        """
        if status is None:
            return False
        return status & 0x7F == SIGKILL and memory * 10 >= self.megabytes * MEGABYTE * 9


def plan(memory: int) -> Jetsam:
    """Return the step, with the limit in whole mebibytes. The limit is at least 1, because 0 would
    mean no limit.
    """
    return Jetsam(megabytes=max(1, memory // MEGABYTE))
