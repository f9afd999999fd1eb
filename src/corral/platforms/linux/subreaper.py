"""The process that keeps the tree together where there is no PID namespace: a subreaper between
supervisor and target. Reports call it "guardian".

Every orphan of the target becomes its child, so the whole tree is below it. It passes signals on by
walking that tree. When the target ends or the supervisor dies, it kills the tree by stop, walk,
kill, until it has no child left, dead or alive. The target can neither signal nor trace it
(seccomp, Landlock). If another process kills the subreaper, the target dies with it (PDEATHSIG,
which it may not clear); processes that the target was allowed to start would then survive unless
they are in a cgroup.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.abi.signal_numbers import SIGKILL, SIGSTOP
from corral.platforms.linux import init, usage
from corral.platforms.linux.mechanisms import landlock
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from corral.plan.model import Results, Stage
    from corral.platforms.linux.init import Pipes


WALL = 0x40000000  # __WALL: children of any kind, also those made without SIGCHLD


@record
class Subreaper:
    """Becomes the reaper of every descendant before the target exists."""

    name = "subreaper"
    stage: Stage = "init"
    verify = unverified

    def describe(self) -> str:
        return "a guardian adopts every orphan of the target and kills the whole tree"

    def apply(self, results: Results) -> None:
        abi.prctl(abi.PR_SET_CHILD_SUBREAPER, 1)
        results.add(init.InitProcess(pid=os.getpid()))


@record
class ParentDeathSignal:
    """The target dies with its subreaper; the filter keeps it from changing that."""

    name = "parent_death_signal"
    stage: Stage = "target"
    verify = unverified

    def describe(self) -> str:
        return "the target dies with its guardian"

    def apply(self, results: Results) -> None:
        abi.prctl(abi.PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != results.get(init.InitProcess).pid:
            raise OSError(0, "the guardian is gone")


def run_subreaper(target: int, pipes: Pipes) -> NoReturn:
    children = init.lock_down(pipes, landlock.open_proc_files(target))
    # From here on the end of the control pipe is the supervisor's death. Dying with it at once
    # would leave the processes that the target has started.
    abi.prctl(abi.PR_SET_PDEATHSIG, 0)
    init.release_target(pipes)

    def pass_on(numbers: bytes) -> None:
        if not numbers:
            _end(target, pipes.status)  # the supervisor is gone
        for number in numbers:
            if number == SIGKILL:
                _end(target, pipes.status)
            elif number:
                _send(usage.tree(os.getpid()), number)

    status = init.wait_for_end(target, pipes, children, on_control=pass_on)
    _end(target, pipes.status, status)


def _end(target: int, status_pipe: int, status: int | None = None) -> NoReturn:
    """Kill the whole tree, report the target's wait status, and exit."""
    ended = _kill_tree(target)
    status = ended if status is None else status
    try:
        if status is not None:
            os.write(status_pipe, status.to_bytes(4, "little"))
    finally:
        os._exit(0)


def _kill_tree(target: int) -> int | None:
    """Stop every process, so that none forks during the walk; kill them; walk again.

    A walk can miss what forks faster than it walks, and a process whose first thread has ended
    looks dead. The kernel knows: a process without a living or dead child has no descendants.
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
