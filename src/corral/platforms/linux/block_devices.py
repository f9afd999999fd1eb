"""Find the disk that a file is on, as a major:minor number, to limit the I/O on the disk.

The cgroup file io.max accepts only the number of a whole disk, not that of a partition.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.policy.model import Policy


def find_disks(policy: Policy) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the disks of /usr and of the granted paths, and the paths that are not on a disk.

    Overlays, some btrfs volumes and network file systems have no disk, so the I/O on them cannot be
    limited. File systems in memory have no disk either, but need no limit.
    """
    paths = ("/usr", *(grant.path for grant in policy.grants))
    found = {path: disk_of(path) for path in paths}
    return tuple(dict.fromkeys(filter(None, found.values()))), tuple(
        path for path, disk in found.items() if not disk
    )


def disk_of(path: str) -> str:
    """Return the disk that a file is on, or "" if the file is not on a disk."""
    try:
        device = os.stat(path).st_dev
        entry = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
        if os.path.exists(f"{entry}/partition"):
            entry = os.path.dirname(os.path.realpath(entry))
        with open(f"{entry}/dev", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
