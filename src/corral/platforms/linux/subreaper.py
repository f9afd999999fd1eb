"""Who keeps the tree together where there is no PID namespace: a subreaper between supervisor and
target.

Every orphan of the target comes back to it, so the whole tree hangs below; it passes signals on by
walking that tree and, when the target ends or the supervisor dies, kills it by stop, walk, kill,
until it has no child left, dead or alive. The target can neither signal nor trace it (seccomp,
Landlock). If somebody else kills the guardian itself, the target dies with it (PDEATHSIG, which it
may not clear); processes that the target was allowed to start would then survive unless a cgroup
holds them.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.abi.signal_numbers import SIGKILL, SIGSTOP
from corral.platforms.linux import init, usage
from corral.platforms.linux.mechanisms import landlock
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from corral.plan.model import Place
    from corral.platforms.linux.init import Pipes
    from corral.platforms.steps import Scene


WALL = 0x40000000  # children of any kind, also those made without SIGCHLD


@record
class Guardian:
    """Becomes the reaper of every descendant before the target exists."""

    place: Place = "init"

    def describe(self) -> str:
        return "a guardian adopts every orphan of the target and kills the whole tree"


@record
class Follow:
    """The target dies with its guardian; the filter keeps it from changing that."""

    place: Place = "target"

    def describe(self) -> str:
        return "the target dies with its guardian"


def apply(step: Guardian | Follow, scene: Scene) -> None:
    match step:
        case Guardian():
            abi.prctl(abi.PR_SET_CHILD_SUBREAPER, 1)
            scene.pid = os.getpid()
        case Follow():
            abi.prctl(abi.PR_SET_PDEATHSIG, SIGKILL)
            if os.getppid() != scene.pid:
                raise OSError(0, "the guardian is gone")


def guard(target: int, pipes: Pipes) -> NoReturn:
    children = init.give_up(pipes, landlock.hold_proc(target))
    # From here on the end of file on `go` tells of the supervisor's death. Dying with it at once
    # would leave whatever the target has started.
    abi.prctl(abi.PR_SET_PDEATHSIG, 0)
    init.let_go(pipes)
    init.wait(
        pipes,
        children,
        obey=lambda told: _obey(told, target, pipes.say),
        reap=lambda: _reap(target, pipes.say),
    )


def _obey(told: bytes, target: int, say: int) -> None:
    if not told:
        _end(target, say)  # the supervisor is gone: so is everything
    for number in told:
        if number == SIGKILL:
            _end(target, say)
        elif number:
            _send(usage.tree(os.getpid()), number)


def _reap(target: int, say: int) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            os._exit(1)
        if pid == target:
            _end(target, say, status)
        if pid == 0:
            return


def _end(target: int, say: int, status: int | None = None) -> NoReturn:
    """Nothing is left when this process is gone; tells the target's wait status."""
    ended = _kill_tree(target)
    status = ended if status is None else status
    try:
        if status is not None:
            os.write(say, status.to_bytes(4, "little"))
    finally:
        os._exit(0)


def _kill_tree(target: int) -> int | None:
    """Stop everything, so that nothing forks behind the walker's back; kill; look again.

    A walk can miss what forks faster than it walks, and a process whose first thread has ended
    looks dead. The kernel knows: who has neither a living nor a dead child has no descendants.
    """
    status: int | None = None
    while True:
        living = usage.tree(os.getpid())
        _send(living, SIGSTOP)
        _send(living, SIGKILL)
        options = WALL if living else WALL | os.WNOHANG
        try:
            while (ended := os.waitpid(-1, options))[0]:
                status = ended[1] if ended[0] == target else status
                options = WALL | os.WNOHANG
        except ChildProcessError:
            return status


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue
