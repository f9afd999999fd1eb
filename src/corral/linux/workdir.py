"""The private directory of a run where no private root can be made: 0700, removed at the end."""

from __future__ import annotations

import os
import sys

from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan import Place
    from corral.posix.enter import Scene

ROOMS = ("home", "tmp")


@record
class WorkDirectory:
    """`uid` and `gid` are the target's: in a run started by root they are not root's."""

    path: str
    uid: int
    gid: int
    place: Place = "supervisor"

    @property
    def residue(self) -> str:
        return self.path

    def describe(self) -> str:
        return f"private directory {self.path}, removed at the end"


def apply(step: WorkDirectory, scene: Scene) -> None:
    os.mkdir(step.path, 0o700)  # fails if somebody put something there first
    scene.directory = step.path
    for room in ROOMS:
        os.mkdir(f"{step.path}/{room}", 0o700)
    if (step.uid, step.gid) != (os.geteuid(), os.getegid()):
        for path in (*(f"{step.path}/{room}" for room in ROOMS), step.path):
            os.chown(path, step.uid, step.gid)


def remove(path: str) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)
