"""The syscall filter of the target, and subprocess = false.

The filter itself is data in `filters` and is compiled by `bpf`. The cookie that lets exactly the first
exec through is made here, lives in the launching process only, and is gone with its memory.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.linux import filters
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan import Place
    from corral.posix.enter import Scene

EPERM = 1
TIOCSTI = 0x5412


@record
class Seccomp:
    machine: str
    subprocess: bool
    unix_sockets: bool
    namespaces: bool = True
    scoped: bool = False
    place: Place = "target"

    def describe(self) -> str:
        processes = "processes allowed" if self.subprocess else "threads yes, processes no"
        sockets = "unix sockets allowed" if self.unix_sockets else "no unix sockets"
        return f"seccomp: {processes}, {sockets}, dangerous system calls denied"


def apply(step: Seccomp, scene: Scene) -> None:
    if not step.subprocess:
        words = os.urandom(24)
        scene.cookie = (_word(words[:8]), _word(words[8:16]), _word(words[16:]))
    program = filters.target(
        machine=step.machine,
        subprocess=step.subprocess,
        unix_sockets=step.unix_sockets,
        namespaces=step.namespaces,
        cookie=None if step.subprocess else scene.cookie,
        own_pid=os.getpid(),
        scoped=step.scoped,
    )
    abi.seccomp_set_filter(program)


def verify(step: Seccomp, _scene: Scene) -> None:
    """A call that is always denied is denied, and so is what this policy denies."""
    if not denies():
        raise OSError(0, "the filter does not speak")
    if not step.subprocess:
        _no_child()
    if not step.namespaces:
        _no_internet()


def denies() -> bool:
    """TIOCSTI on no descriptor at all: EBADF from the kernel, EPERM from the filter and only from it."""
    try:
        abi.syscall("ioctl", -1, TIOCSTI, 0)
    except OSError as error:
        return error.errno == EPERM
    return False


def _no_internet() -> None:
    try:
        os.close(abi.syscall("socket", abi.AF_INET, abi.SOCK_DGRAM | abi.SOCK_CLOEXEC, 0))
    except OSError:
        return
    raise OSError(0, "an internet socket could be made")


def _no_child() -> None:
    try:
        pid = os.fork()
    except OSError:
        return
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    raise OSError(0, "a child process could be made")


def _word(raw: bytes) -> int:
    return int.from_bytes(raw, "little")
