"""Find the disk of a file as major:minor. io.max needs the numbers of the whole disk, not those of
a partition.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.policy.model import Policy


def find_disks(policy: Policy) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Look up the disks of /usr and the grants. Return the disks, and the paths that are on no
    disk.

    Overlays, some btrfs volumes and network file systems have no disk, and cannot be limited. A
    file system in memory needs no limit.
    """
    paths = ("/usr", *(grant.path for grant in policy.grants))
    found = {path: disk_of(path) for path in paths}
    return tuple(dict.fromkeys(filter(None, found.values()))), tuple(
        path for path, disk in found.items() if not disk
    )


def disk_of(path: str) -> str:
    """Return the disk of a path, or "" if the path is on no block device."""
    try:
        device = os.stat(path).st_dev
        entry = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
        if os.path.exists(f"{entry}/partition"):
            entry = os.path.dirname(os.path.realpath(entry))
        with open(f"{entry}/dev", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
