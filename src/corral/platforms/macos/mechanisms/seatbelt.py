"""Seatbelt: the wall around files, network, mach services and other processes.

The library call puts it up, after the fork and right before exec; the `sandbox-exec` tool is not
used. Everything that the process needs afterwards was imported before, because the interpreter's
own library may be out of reach then.
"""

from __future__ import annotations

import _socket
import os
import sys

from corral.abi import darwin_proc, darwin_sandbox
from corral.errors import PolicyError
from corral.paths.posix import is_inside
from corral.platforms.macos.mechanisms import loopback_proxy, seatbelt_profile
from corral.platforms.posix import disposable
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.plan.model import Results, Stage

EPERM = 1
DISCARD_PORT = 9
"""No process listens there, so without a wall the error is another one than EPERM."""
DIRECTORIES_OF_OTHERS = ("/Users", "/Library/Preferences", "/Applications")
"""They exist on every Mac and can be read without walls."""


@record
class Seatbelt:
    """`closed` is a directory that the target could list without Seatbelt and must not with it.
    `alone`: the target may not start a process. `proxy`: it may reach the port of the loopback
    proxy, which is known only when the step is applied.
    """

    name = "seatbelt"
    profile: str
    parameters: tuple[tuple[str, str], ...]
    closed: str
    alone: bool
    proxy: bool = False
    stage: Stage = "target"

    def describe(self) -> str:
        rules = self.profile.count("\n(")
        paths = ", ".join(f"{name} = {path}" for name, path in self.parameters)
        proxy = " and one for the proxy's port" if self.proxy else ""
        return f"seatbelt: deny default, {rules} rules{proxy}; {paths}"

    def apply(self, results: Results) -> None:
        # The control: without the wall these two succeed.
        os.listdir(self.closed)
        darwin_proc.threads(os.getppid())
        rules = seatbelt_profile.proxy_rules(_proxy_port(results)) if self.proxy else ""
        darwin_sandbox.init(self.profile + rules, self.parameters)

    def verify(self, results: Results) -> None:
        if not darwin_sandbox.confined(os.getpid()):
            raise OSError(0, "no sandbox is reported for this process")
        _expect_denial(lambda: os.listdir(self.closed), f"{self.closed} can be listed")
        parent = os.getppid()
        _expect_denial(lambda: darwin_proc.threads(parent), "other processes can be inspected")
        _verify_network()
        if self.proxy:
            connect(_proxy_port(results))
        if self.alone:
            _verify_alone()


def _proxy_port(results: Results) -> int:
    return results.get(loopback_proxy.ProxyPort).number


def directory_outside(granted: tuple[str, ...]) -> str:
    """Return a directory of others that is in none of these paths."""
    for path in DIRECTORIES_OF_OTHERS:
        if not any(is_inside(path, top) for top in granted):
            return path
    raise PolicyError(
        f"with all of {', '.join(DIRECTORIES_OF_OTHERS)} granted nothing can show that the wall "
        "holds",
        hint="grant the directories in them that the server needs",
    )


def _expect_denial(attempt: Callable[[], object], failure: str) -> None:
    try:
        attempt()
    except PermissionError:
        return
    raise OSError(0, failure)


def _verify_alone() -> None:
    try:
        disposable.fork_once()
    except OSError:
        return  # denied by the wall, or by RLIMIT_NPROC before it
    raise OSError(0, "a process can be started")


def _verify_network() -> None:
    try:
        connect(DISCARD_PORT)
    except OSError as error:
        if error.errno == EPERM:
            return
    raise OSError(0, "the network can be reached")


def connect(port: int) -> None:
    """Connect to a port of this Mac and hang up."""
    stream = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        stream.connect((loopback_proxy.LOOPBACK, port))
    finally:
        stream.close()
