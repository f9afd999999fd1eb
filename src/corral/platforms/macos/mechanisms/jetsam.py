"""Jetsam: the kernel kills the first image of the target at a limit of its physical footprint.

exec itself sets the limit (`spawn`), and the next exec drops it. A target can get rid of it that
way, so the report calls it cooperative. The limit costs nothing until it is reached, so it enforces
the default memory limit; a stated one is enforced by sampling, for the whole tree.
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
        return f"the kernel kills the first image at a footprint of {self.megabytes} MiB"

    def apply(self, results: Results) -> None:
        results.add(FootprintLimit(megabytes=self.megabytes))


@record
class FootprintLimit:
    """The limit that exec has to set."""

    megabytes: int

    def has_killed(self, status: int | None, memory: int) -> bool:
        """Return whether this limit probably ended a target with this wait status and peak memory.

        The kernel does not say who sent SIGKILL, but a target that was far below its limit was
        killed by another process.
        """
        if status is None:
            return False
        return status & 0x7F == SIGKILL and memory * 10 >= self.megabytes * MEGABYTE * 9


def plan(memory: int) -> Jetsam:
    """Round down to whole mebibytes, but never to 0, which would mean no limit."""
    return Jetsam(megabytes=max(1, memory // MEGABYTE))
