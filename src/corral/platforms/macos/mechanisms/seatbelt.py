"""Seatbelt: the wall around files, network, mach services and other processes.

By the library's call, after the fork and right before exec, never by a tool. Everything the process
needs afterwards was imported before, since the interpreter's own library may be out of sight.
"""

from __future__ import annotations

import _socket
import os
import sys

from corral.abi import darwin_proc
from corral.abi import darwin_sandbox as abi
from corral.errors import PolicyError
from corral.paths.posix import is_inside
from corral.platforms.macos.mechanisms import seatbelt_profile as profile
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.plan.model import Place
    from corral.platforms.steps import Scene

EPERM = 1
SOMEBODYS = ("/Users", "/Library/Preferences", "/Applications")
"""There on every Mac, and readable without walls."""


@record
class Seatbelt:
    """`closed` is a directory that the target could list without this, and must not with it.
    `alone`: nor may it start a process. `door`: it may reach one port, which is known at birth.
    """

    profile: str
    parameters: tuple[tuple[str, str], ...]
    closed: str
    alone: bool
    door: bool = False
    place: Place = "target"

    def describe(self) -> str:
        rules = self.profile.count("\n(")
        paths = ", ".join(f"{name} = {path}" for name, path in self.parameters)
        door = " and one for the door's port" if self.door else ""
        return f"seatbelt: deny default, {rules} rules{door}; {paths}"


def outside(read: tuple[str, ...]) -> str:
    """One of those directories that nothing in `read` holds."""
    for place in SOMEBODYS:
        if not any(is_inside(place, path) for path in read):
            return place
    raise PolicyError(
        f"with all of {', '.join(SOMEBODYS)} granted nothing can show that the wall holds",
        hint="grant the directories in them that the server needs",
    )


def apply(step: Seatbelt, scene: Scene) -> None:
    # The control: without the wall these can be done.
    os.listdir(step.closed)
    darwin_proc.threads(os.getppid())
    abi.init(step.profile + (profile.door(scene.port) if step.door else ""), step.parameters)


def verify(step: Seatbelt, scene: Scene) -> None:
    if not abi.confined(os.getpid()):
        raise OSError(0, "no sandbox is reported for this process")
    _refused(lambda: os.listdir(step.closed), f"{step.closed} can be listed")
    _refused(lambda: darwin_proc.threads(os.getppid()), "other processes can be looked at")
    _verify_network()
    if step.door:
        connect(scene.port)
    if step.alone:
        _verify_alone()


def _refused(attempt: Callable[[], object], words: str) -> None:
    try:
        attempt()
    except PermissionError:
        return
    raise OSError(0, words)


def _verify_alone() -> None:
    try:
        pid = os.fork()
    except OSError:
        return  # by the wall, or by RLIMIT_NPROC before it
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    raise OSError(0, "a process can be started")


def _verify_network() -> None:
    """Port 9 is nobody's: without a wall the kernel answers that, and not EPERM."""
    try:
        connect(9)
    except OSError as error:
        if error.errno == EPERM:
            return
    raise OSError(0, "the network can be reached")


def connect(port: int) -> None:
    """To a port of this Mac, and no further."""
    stream = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        stream.connect(("127.0.0.1", port))
    finally:
        stream.close()
