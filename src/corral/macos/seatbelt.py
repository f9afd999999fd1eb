"""Seatbelt: the wall around files, network, mach services and other processes.

By the library's call, after the fork and right before exec, never by a tool. Everything the process
needs afterwards was imported before, since the interpreter's own library may be out of sight.
"""

from __future__ import annotations

import _socket
import os
import sys

from corral.abi import darwin_sandbox as abi
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan import Place
    from corral.posix.enter import Scene

EPERM = 1
SOMEBODYS = ("/Users", "/Library/Preferences", "/Applications")
"""There on every Mac, and readable without walls."""


@record
class Seatbelt:
    """`closed` is a directory that the target could list without this, and must not with it."""

    profile: str
    parameters: tuple[tuple[str, str], ...]
    closed: str
    place: Place = "target"

    def describe(self) -> str:
        rules = self.profile.count("\n(")
        paths = ", ".join(f"{name} = {path}" for name, path in self.parameters)
        return f"seatbelt: deny default, {rules} rules; {paths}"


def outside(read: tuple[str, ...]) -> str:
    """One of those directories that nothing in `read` holds."""
    return next(
        place
        for place in SOMEBODYS
        if not any(place == path or place.startswith(f"{path}/") for path in read)
    )


def apply(step: Seatbelt, _scene: Scene) -> None:
    os.listdir(step.closed)  # the control: without the wall it can be done
    abi.init(step.profile, step.parameters)


def verify(step: Seatbelt, _scene: Scene) -> None:
    if not abi.confined(os.getpid()):
        raise OSError(0, "no sandbox is reported for this process")
    try:
        os.listdir(step.closed)
    except PermissionError:
        pass
    else:
        raise OSError(0, f"{step.closed} can be listed")
    _verify_network()


def _verify_network() -> None:
    """Port 9 is nobody's: without a wall the kernel answers that, and not EPERM."""
    try:
        stream = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        stream.connect(("127.0.0.1", 9))
    except OSError as error:
        if error.errno == EPERM:
            return
    raise OSError(0, "the network can be reached")
