"""Which disk a file lies on, as io.max wants to hear it: major:minor of the whole disk."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.policy.model import Policy


def behind(policy: Policy) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The disks of what the target can read or write, and the paths that have none.

    Memory has none, and needs none. Nor have overlays, some btrfs volumes and what comes over a
    network: there nothing can be held.
    """
    paths = ("/usr", *(grant.path for grant in policy.grants))
    found = {path: disk_of(path) for path in paths}
    return tuple(dict.fromkeys(filter(None, found.values()))), tuple(
        path for path, disk in found.items() if not disk
    )


def disk_of(path: str) -> str:
    """Empty if there is no block device behind it."""
    try:
        device = os.stat(path).st_dev
        entry = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
        if os.path.exists(f"{entry}/partition"):
            entry = os.path.dirname(os.path.realpath(entry))
        with open(f"{entry}/dev", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
