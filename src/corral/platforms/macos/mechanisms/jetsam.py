"""Have the kernel (jetsam) kill the target when the physical footprint of its first program exceeds
a limit.

`spawn` sets the limit when it executes the target, and the kernel drops it when the target executes
another program. The target can therefore evade the limit, and the report calls it "cooperative".
Unlike sampling, this limit costs no CPU time. corral uses it for the default memory limit if the
target may not start processes. If the policy sets a memory limit, corral uses sampling instead.
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
        return f"the kernel kills the first program if its footprint exceeds {self.megabytes} MiB"

    def apply(self, results: Results) -> None:
        results.add(FootprintLimit(megabytes=self.megabytes))


@record
class FootprintLimit:
    """The memory limit of the target, which `spawn` passes to exec."""

    megabytes: int

    def has_killed(self, status: int | None, memory: int) -> bool:
        """Return whether this limit probably killed a target with this wait status and peak memory.

        The kernel does not report why a process got SIGKILL. If the peak was more than a tenth
        below the limit, assume that another process sent the signal.
        """
        if status is None:
            return False
        return status & 0x7F == SIGKILL and memory * 10 >= self.megabytes * MEGABYTE * 9


def plan(memory: int) -> Jetsam:
    """Return the step for a limit of `memory` bytes, rounded down to whole mebibytes. The limit is
    at least 1 MiB, because 0 would mean no limit.
    """
    return Jetsam(megabytes=max(1, memory // MEGABYTE))
