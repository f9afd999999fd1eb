"""Open the places where a target without namespaces may write, for `file_changes`.

A place is a granted file or directory, or one of the target's own directories. The supervisor
changes modes and times for the target, but only of files in these places. It opens the places
before the target starts. A place is the opened file, not its path, just as in Landlock's rules. So
a file that later takes the path of a grant is not a place.
"""

from __future__ import annotations

import os
import sys

from corral.platforms.linux import file_changes, notifications
from corral.platforms.posix import run_directories
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage
    from corral.platforms.linux.host_files import Layout
    from corral.policy.model import Policy


@record
class WritablePlaces:
    """Opens every file and directory that Landlock lets the target write to.

    The step fails if a granted path now leads to a different file than in the plan.
    """

    name = "writable_places"
    # Each grant as (path, path as the user wrote it, device, inode).
    granted: tuple[tuple[str, str, int, int], ...]
    private: tuple[str, ...]  # the target's own directories
    own: str  # corral's directory that contains the target's own directories
    uid: int  # the target's user id on the host
    gid: int
    stage: Stage = "supervisor"
    verify = unverified

    def describe(self) -> str:
        return "the supervisor changes modes and times of files where the target may write"

    def apply(self, results: Results) -> None:
        places: list[file_changes.Place] = []
        own = os.stat(self.own)
        changes = file_changes.FileChanges(places, self.uid, self.gid, (own.st_dev, own.st_ino))
        results.add(changes)
        for path, written, device, inode in self.granted:
            places.append(place := _open(path, written))
            seen = os.fstat(place.fd)
            if (seen.st_dev, seen.st_ino) != (device, inode):
                raise OSError(0, "this is no longer the file that was granted", path)
        places += [_open(path, path) for path in self.private]
        # Set this decider before the target's first call. Without it the next decider for these
        # calls in `notified_calls.CALLS` would let the kernel execute them.
        results.get(notifications.Deciders).by_name["file_changes"] = changes


def _open(path: str, written: str) -> file_changes.Place:
    return file_changes.Place(
        fd=os.open(path, os.O_PATH | os.O_CLOEXEC), path=path, written=written
    )


def plan(policy: Policy, layout: Layout) -> WritablePlaces:
    return WritablePlaces(
        granted=tuple(
            (grant.path, grant.written or grant.path, grant.device, grant.inode)
            for grant in policy.grants
            if grant.access == "write"
        ),
        private=(*run_directories.inner(layout.directory), *filter(None, (layout.state,))),
        own=layout.directory,
        uid=layout.who.outside_uid,
        gid=layout.who.outside_gid,
    )
