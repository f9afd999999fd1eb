"""Drop capabilities, and set securebits and no_new_privs, so that the target cannot gain rights
through exec.

Securebits and the bounding set need CAP_SETPCAP, so set them before dropping capabilities.
"""

from __future__ import annotations

from corral.abi import linux as abi
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage

# On: NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE. Off: KEEP_CAPS. All four are locked.
SECUREBITS = 0b1110_1111
EINVAL = 22
# Every kernel with user namespaces and seccomp has at least this many capabilities. So EINVAL for a
# lower number is a real error.
FEWEST = 38


@record
class BoundingSet:
    name = "bounding_set"
    stage: Stage = "init"

    def describe(self) -> str:
        return "securebits locked, capability bounding set emptied"

    def apply(self, _results: Results) -> None:
        abi.prctl(abi.PR_SET_SECUREBITS, SECUREBITS)
        # The number of capabilities depends on the kernel. For a number above the last capability,
        # the kernel returns EINVAL.
        for number in range(64):
            try:
                abi.prctl(abi.PR_CAPBSET_DROP, number)
            except OSError as error:
                if error.errno != EINVAL or number < FEWEST:
                    raise
                return

    def verify(self, _results: Results) -> None:
        status = abi.read_file("/proc/self/status")
        left = int(status.partition(b"CapBnd:")[2].split(None, 1)[0], 16)
        if left:
            raise OSError(0, f"capabilities are left in the bounding set: {left:x}")


@record
class Capabilities:
    name = "capabilities"
    stage: Stage = "target"

    def describe(self) -> str:
        return "all capabilities dropped, no_new_privs set"

    def apply(self, _results: Results) -> None:
        drop()

    def verify(self, _results: Results) -> None:
        if any(abi.capget()) or not abi.prctl(abi.PR_GET_NO_NEW_PRIVS):
            raise OSError(0, "capabilities are left, or no_new_privs is not set")


def drop() -> None:
    abi.prctl(abi.PR_CAP_AMBIENT, abi.PR_CAP_AMBIENT_CLEAR_ALL)
    abi.capset_empty()
    abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
