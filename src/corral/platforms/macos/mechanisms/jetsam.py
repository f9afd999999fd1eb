"""A limit of the physical footprint at which the kernel kills the image that it was set for.

It is set by the exec itself (`birth`), which reads it from the plan, and lost at the next exec, by
which a target that wants to can shake it off: the report calls it cooperative. It costs nothing
while it is not reached, so it is what holds a memory limit that nobody stated; a stated one is held
by sampling, for the whole tree.
"""

from __future__ import annotations

from corral.abi.signal_numbers import SIGKILL
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Place

MEGABYTE = 1 << 20


@record
class Jetsam:
    megabytes: int
    place: Place = "birth"

    def describe(self) -> str:
        return f"the kernel kills the first image at a footprint of {self.megabytes} MiB"


def plan(memory: int) -> Jetsam:
    """Whole mebibytes, never more than was asked for and never none."""
    return Jetsam(megabytes=max(1, memory // MEGABYTE))


def killed(status: int | None, memory: int, megabytes: int) -> bool:
    """Whether it was this limit that ended a target, as far as can be told: the kernel does not say
    who sent SIGKILL, but a target that was nowhere near its limit was killed by somebody else.
    """
    if status is None or not megabytes:
        return False
    return status & 0x7F == SIGKILL and memory * 10 >= megabytes * MEGABYTE * 9
