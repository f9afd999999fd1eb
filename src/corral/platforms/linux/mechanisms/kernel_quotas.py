"""Lower the kernel's quotas inside the namespaces, so that a target cannot use up the host's
quotas.

What a target uses in its user namespace also counts against the quotas of the user who runs corral.
Without lower quotas a target could, for example, use up that user's inotify instances.

The number of System V objects is limited for another reason: where no cgroup counts memory, the
supervisor reads a list of all these objects for each measurement, to add up their sizes.
"""

from __future__ import annotations

import sys

from corral.abi import linux as abi
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage

INOTIFY_SHARE = 4
# Maps a file below /proc/sys to (the position of the maximum in the file, the new maximum).
IPC = {
    "kernel/msgmni": (0, 1024),
    "kernel/shmmni": (0, 1024),
    "kernel/sem": (3, 1024),
    "fs/mqueue/queues_max": (0, 64),
}


@record
class KernelQuotas:
    name = "kernel_quotas"
    stage: Stage = "init"
    verify = unverified

    def describe(self) -> str:
        return "a quarter of the user's inotify instances and watches; fewer System V objects"

    def apply(self, _results: Results) -> None:
        for kind in ("instances", "watches"):
            outside = _read(f"fs/inotify/max_user_{kind}")
            if outside:  # a kernel without inotify has no such file
                share = str(max(1, int(outside[0]) // INOTIFY_SHARE))
                path = f"user/max_inotify_{kind}"
                abi.write_file(f"/proc/sys/{path}", share)
                if _read(path) != [share]:
                    raise OSError(0, f"setting {share} had no effect", f"/proc/sys/{path}")
        for path, (position, most) in IPC.items():
            _lower(path, position, most)


def _lower(path: str, position: int, most: int) -> None:
    """Lower a maximum of the IPC namespace.

    Only uid 0 in the namespace may do this. If an ordinary user runs corral, the namespace has no
    uid 0, and the maximum stays as it is.
    """
    words = _read(path)
    if len(words) > position and int(words[position]) > most:
        words[position] = str(most)
        try:
            abi.write_file(f"/proc/sys/{path}", " ".join(words))
        except PermissionError:
            return


def _read(path: str) -> list[str]:
    try:
        return abi.read_file(f"/proc/sys/{path}").decode().split()
    except FileNotFoundError:
        return []
