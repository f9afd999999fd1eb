"""Let the kernel kill the target's first program at a limit of its physical footprint (jetsam).

exec sets the limit (`spawn`), and the next exec drops it. So a target can evade the limit, and the
report calls it cooperative. The limit costs nothing until it is reached, so it enforces the default
memory limit. A stated limit is enforced by sampling the whole tree.
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

        The kernel does not report which process sent SIGKILL. But if the target was far below its
        limit, another process killed it.
        """
        if status is None:
            return False
        return status & 0x7F == SIGKILL and memory * 10 >= self.megabytes * MEGABYTE * 9


def plan(memory: int) -> Jetsam:
    """Return the step. Round down to whole mebibytes, but not to 0, which would mean no limit."""
    return Jetsam(megabytes=max(1, memory // MEGABYTE))
