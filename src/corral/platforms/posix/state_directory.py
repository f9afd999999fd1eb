"""`state = true`: a private directory that survives runs, one for each server."""

from __future__ import annotations

import os

from corral.directories import directories
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Place
    from corral.platforms.steps import Scene
    from corral.programs.model import Program


@record
class State:
    """`inside` is where the target finds it."""

    path: str
    inside: str
    place: Place = "supervisor"

    def describe(self) -> str:
        return f"keep {self.inside} in {self.path}"


def path_for(program: Program) -> str:
    """The same program with the same arguments is the same server."""
    import hashlib

    words = "\0".join((program.real or program.path, *program.argv[1:]))
    digest = hashlib.sha256(os.fsencode(words)).hexdigest()[:32]
    return os.path.join(directories().state, "servers", digest)


def apply(step: State, _scene: Scene) -> None:
    os.makedirs(step.path, mode=0o700, exist_ok=True)
