"""Confine files, network, mach services and other processes with Seatbelt.

The profile is applied after the fork and right before exec, by a library call instead of the
`sandbox-exec` tool. All modules that the process still needs are imported before that call, because
afterwards the process may be unable to read the interpreter's library.
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
    from collections.abc import Callable, Iterable

    from corral.plan.model import Results, Stage, Step

EPERM = 1
DISCARD_PORT = 9
"""A port on which no process listens. A connection to it always fails, but it fails with EPERM only
if Seatbelt denies it.
"""
DIRECTORIES_OF_OTHERS = ("/Users", "/Library/Preferences", "/Applications")
"""Directories that exist on every Mac and that, without Seatbelt, every process can read."""


@record
class Seatbelt:
    name = "seatbelt"
    profile: str
    parameters: tuple[tuple[str, str], ...]
    closed: str  # a directory that `verify` tries to list; only Seatbelt denies this
    alone: bool  # True if the target must not start other processes
    proxy: bool = False  # True if the target may reach the proxy; `apply` adds a rule for its port
    marker: str = ""  # a name by which corral recognizes the profile
    stage: Stage = "target"

    def describe(self) -> str:
        rules = self.profile.count("\n(")
        paths = ", ".join(f"{name} = {path}" for name, path in self.parameters)
        proxy = " and one for the proxy's port" if self.proxy else ""
        return f"seatbelt: deny default, {rules} rules{proxy}; {paths}"

    def apply(self, results: Results) -> None:
        # Make both calls here, before Seatbelt is applied, to see that they succeed. If they fail
        # later in `verify`, it is Seatbelt that has denied them.
        os.listdir(self.closed)
        darwin_proc.threads(os.getppid())
        rules = seatbelt_profile.proxy_rules(_proxy_port(results)) if self.proxy else ""
        darwin_sandbox.init(self.profile + rules, self.parameters)

    def verify(self, results: Results) -> None:
        if not darwin_sandbox.confined(os.getpid()):
            raise OSError(0, "macOS reports that this process is not in a sandbox")
        _expect_denial(lambda: os.listdir(self.closed), f"{self.closed} can be listed")
        parent = os.getppid()
        _expect_denial(lambda: darwin_proc.threads(parent), "other processes can be inspected")
        _verify_network()
        if self.proxy:
            connect(_proxy_port(results))
        if self.alone:
            _verify_alone()


def find_marker(steps: Iterable[Step]) -> str:
    return next((step.marker for step in steps if isinstance(step, Seatbelt)), "")


def _proxy_port(results: Results) -> int:
    return results.get(loopback_proxy.ProxyPort).number


def directory_outside(granted: tuple[str, ...]) -> str:
    """Return a directory outside all granted paths, so that `verify` can check that the target
    cannot read it. Raise PolicyError if all candidates are granted.
    """
    for path in DIRECTORIES_OF_OTHERS:
        if not any(is_inside(path, top) for top in granted):
            return path
    raise PolicyError(
        f"the policy grants all of {', '.join(DIRECTORIES_OF_OTHERS)}, so corral cannot check "
        "the sandbox: one of these directories must not be granted",
        hint="grant only the directories in them that the server needs",
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
        return  # Seatbelt or RLIMIT_NPROC has denied the fork
    raise OSError(0, "a process can be started")


def _verify_network() -> None:
    try:
        connect(DISCARD_PORT)
    except OSError as error:
        if error.errno == EPERM:
            return
    raise OSError(0, "the network can be reached")


def connect(port: int) -> None:
    stream = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        stream.connect((loopback_proxy.LOOPBACK, port))
    finally:
        stream.close()
