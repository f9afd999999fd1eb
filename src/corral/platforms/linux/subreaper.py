"""Run a subreaper between supervisor and target, to keep the tree together without namespaces.

Reports call the subreaper "guardian". Every orphan of the target becomes a child of the subreaper,
so the whole tree is below it. When the target ends or the supervisor dies, the subreaper kills
processes until it has no children left, dead or alive.

If this kernel's Landlock can confine signals to a domain, which is a set of processes, the
subreaper and the tree get a domain of their own. Then one call signals the whole tree and no other
process, even if the tree is starting new processes. Otherwise the subreaper walks the tree and
signals each process.

seccomp and Landlock keep the target from signalling or tracing the subreaper. If another process
kills the subreaper, the kernel kills the target too, because of PDEATHSIG, which the target is not
allowed to clear. But other processes of the tree then survive, unless they are in a cgroup.
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
    from collections.abc import Callable
    from typing import NoReturn

    from corral.plan.model import Results, Stage
    from corral.platforms.linux.init import Pipes

    Send = Callable[[int], bool]

WALL = 0x40000000  # __WALL: wait for all children, even those made without SIGCHLD


@record
class Subreaper:
    """Makes this process the reaper of all its descendants, before the target exists.

    With `scoped`, signals from this process reach only these descendants.
    """

    name = "subreaper"
    scoped: bool = False
    stage: Stage = "init"
    verify = unverified

    def describe(self) -> str:
        return "a guardian adopts every orphan of the target and kills the whole tree"

    def apply(self, results: Results) -> None:
        abi.prctl(abi.PR_SET_CHILD_SUBREAPER, 1)
        if self.scoped:
            landlock.scope_signals()
        results.add(init.InitProcess(pid=os.getpid()))


@record
class ParentDeathSignal:
    """Makes the kernel kill the target when its subreaper dies.

    The seccomp filter keeps the target from clearing this setting.
    """

    name = "parent_death_signal"
    stage: Stage = "target"
    verify = unverified

    def describe(self) -> str:
        return "the target dies with its guardian"

    def apply(self, results: Results) -> None:
        abi.prctl(abi.PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != results.get(init.InitProcess).pid:
            raise OSError(0, "the guardian has ended")


def run_subreaper(target: int, pipes: Pipes, *, scoped: bool) -> NoReturn:
    send = _send_scoped if scoped else _send
    children = init.lock_down(pipes, landlock.open_proc_files(target))
    # The subreaper must not die with the supervisor, because it has to kill the processes that the
    # target has started. The end of file on the control pipe shows that the supervisor has died.
    abi.prctl(abi.PR_SET_PDEATHSIG, 0)
    init.release_target(pipes)

    def pass_on(numbers: bytes) -> None:
        # No numbers mean end of file: the supervisor has ended, so kill the tree.
        for number in numbers or (SIGKILL,):
            if number == SIGKILL:
                _end(target, pipes.status, send)
            elif number:
                send(number)

    status = init.wait_for_end(target, pipes, children, on_control=pass_on)
    _end(target, pipes.status, send, status)


def _end(target: int, status_pipe: int, send: Send, status: int | None = None) -> NoReturn:
    """Kill the whole tree, report the target's wait status, and exit."""
    ended = _kill_tree(target, send)
    status = ended if status is None else status
    try:
        if status is not None:
            os.write(status_pipe, status.to_bytes(4, "little"))
    finally:
        os._exit(0)


def _kill_tree(target: int, send: Send) -> int | None:
    """Kill all processes of the tree. Return the target's wait status if it was reaped here.

    A walk through the tree can miss processes, because new ones may start during the walk, and
    because a process whose main thread has ended looks dead. So repeat the kill until waitpid
    reports that there is no child, dead or alive.
    """
    status: int | None = None
    while True:
        options = WALL if send(SIGKILL) else WALL | os.WNOHANG
        try:
            while (ended := os.waitpid(-1, options))[0]:
                status = ended[1] if ended[0] == target else status
                options = WALL | os.WNOHANG
        except ChildProcessError:
            return status


def _send_scoped(number: int) -> bool:
    """Signal every process of the Landlock domain except this one, with a single call.

    No process is missed, because no process can fork during this call. Return True.
    """
    try:
        os.kill(-1, number)
    except OSError:
        pass  # there is no process left to signal
    return True


def _send(number: int) -> bool:
    """Signal the descendants that a walk finds. Return whether there were any.

    Before killing them, stop all of them, so that they cannot fork in the meantime.
    """
    pids = usage.tree(os.getpid())
    for one in (SIGSTOP, SIGKILL) if number == SIGKILL else (number,):
        for pid in pids:
            try:
                os.kill(pid, one)
            except OSError:
                continue
    return bool(pids)
