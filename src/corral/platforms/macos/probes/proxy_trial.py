"""The trial of the door: behind the walls its port is reached, and no other that listens."""

from __future__ import annotations

import os
import sys

from corral.platforms.macos.mechanisms import seatbelt
from corral.platforms.posix import disposable
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Place
    from corral.platforms.steps import Scene


@record
class Knock:
    """Takes the target's place in the twin: tries, tells `fd` what it saw, and fails. `port` is
    another one where somebody listens.
    """

    fd: int
    port: int
    place: Place = "target"

    def describe(self) -> str:
        return "knock at the door and beside it"


def apply(step: Knock, scene: Scene) -> None:
    words = disposable.refused(lambda: seatbelt.connect(step.port), by=PermissionError)
    seatbelt.connect(scene.port)
    os.write(step.fd, f"beside={words}".encode())
    raise OSError(0, "the trial is over")
