"""PID 1 of the sandbox: reaps, passes signals on, and ends everything when it ends.

It is a fork of corral in the target's reach, so it holds nothing worth reaching: not dumpable and
hidden by /proc's hidepid (no environ, maps or mem), no descriptors but its pipes, no capabilities,
and a filter that leaves it hardly more than waiting. The target is let go only once all of that is
in place.
"""

from __future__ import annotations

import os
import select
import sys

from corral.abi import linux as abi
from corral.abi.signal_numbers import SIGCHLD, SIGKILL
from corral.platforms import steps
from corral.platforms.linux.mechanisms import privileges, seccomp
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn


def follow_supervisor() -> None:
    """Die with the supervisor. A change of ids clears this, so it is set again after one."""
    abi.prctl(abi.PR_SET_PDEATHSIG, SIGKILL)


def guard(target: int, pipes: Pipes, *, space: str) -> NoReturn:
    """`space` is a directory of the private space; whether that is full is told at the end."""
    disk = os.open(space, os.O_PATH | os.O_CLOEXEC)
    children = give_up(pipes, {disk})
    privileges.drop()
    abi.seccomp_set_filter(seccomp.compiled_for_init(os.uname().machine))
    let_go(pipes)
    wait(pipes, children, obey=_pass_on, reap=lambda: _reap(target, pipes.say, disk))


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


@record
class Pipes:
    """A keeper's ends of the pipes of `birth`, and the gate that holds the target back."""

    go: int
    say: int
    born: int
    gate: int


def give_up(pipes: Pipes, keep: Iterable[int]) -> int:
    """No dump, streams, environment or descriptors but these; returns what tells of children."""
    abi.prctl(abi.PR_SET_DUMPABLE, 0)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    abi.sigprocmask(abi.SIG_BLOCK, (SIGCHLD,))
    children = abi.signalfd((SIGCHLD,))
    own = (pipes.go, pipes.say, pipes.born, pipes.gate, children)
    steps.keep_only({0, 1, 2, *own, *keep})
    os.environ.clear()
    return children


def let_go(pipes: Pipes) -> None:
    os.close(pipes.born)
    os.write(pipes.gate, b"\0")
    os.close(pipes.gate)


def wait(
    pipes: Pipes, children: int, *, obey: Callable[[bytes], None], reap: Callable[[], None]
) -> NoReturn:
    """`obey` gets what the supervisor says, nothing at all when it is gone."""
    poll = select.poll()
    poll.register(pipes.go, select.POLLIN)
    poll.register(children, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == pipes.go:
                obey(os.read(pipes.go, 64))
            else:
                os.read(children, 128)
                reap()
