"""PID 1 of the sandbox: reaps, passes signals on, and ends everything when it ends.

It is a fork of corral in the target's reach, so it holds nothing worth reaching: not dumpable and
hidden by /proc's hidepid (no environ, maps or mem), no descriptors but its pipes, no capabilities,
and a filter that leaves it hardly more than waiting. The target is let go only once all of that is
in place.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.linux import keeper, privileges, seccomp
from corral.posix.signals import SIGKILL

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from corral.linux.keeper import Pipes


def follow_supervisor() -> None:
    """Die with the supervisor. A change of ids clears this, so it is set again after one."""
    abi.prctl(abi.PR_SET_PDEATHSIG, SIGKILL)


def guard(target: int, pipes: Pipes, *, space: str) -> NoReturn:
    """`space` is a directory of the private space; whether that is full is told at the end."""
    disk = os.open(space, os.O_PATH | os.O_CLOEXEC)
    children = keeper.give_up(pipes, {disk})
    privileges.drop()
    abi.seccomp_set_filter(seccomp.compiled_for_init(os.uname().machine))
    keeper.let_go(pipes)
    keeper.wait(pipes, children, obey=_pass_on, reap=lambda: _reap(target, pipes.say, disk))


def _pass_on(told: bytes) -> None:
    if not told:
        os._exit(1)  # the supervisor is gone: so is everything
    for number in told:
        try:
            os.kill(-1, number)  # every process of the namespace but this one
        except ProcessLookupError:
            pass


def _reap(target: int, say: int, disk: int) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            os._exit(1)
        if pid == target:
            _reap_the_rest()
            os.write(say, status.to_bytes(4, "little") + bytes([_is_full(disk)]))
            os._exit(0)
        if pid == 0:
            return


def _reap_the_rest() -> None:
    """The kernel would kill them with us, but count for nobody what they used."""
    try:
        os.kill(-1, SIGKILL)
        while True:
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def _is_full(disk: int) -> bool:
    seen = os.fstatvfs(disk)
    return not (seen.f_bfree and seen.f_ffree)
