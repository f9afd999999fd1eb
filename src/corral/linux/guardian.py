"""Who keeps the tree together where there is no PID namespace: a subreaper between supervisor and
target.

Every orphan of the target comes back to it, so the whole tree hangs below; it passes signals on by
walking that tree and, when the target ends or the supervisor dies, kills it by stop, walk, kill,
until two walks agree that nothing is left. The target can neither signal nor trace it (seccomp,
Landlock). If somebody else kills the guardian itself, the target dies with it (PDEATHSIG, which it
may not clear); processes that the target was allowed to start would then survive unless a cgroup
holds them.
"""

from __future__ import annotations

import os
import select
import sys

from corral.abi import linux as abi
from corral.linux import usage
from corral.posix import enter
from corral.posix.signals import SIGCHLD, SIGKILL, SIGSTOP
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from corral.plan import Place
    from corral.posix.enter import Scene


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


def guard(target: int, *, go: int, say: int, gate: int) -> NoReturn:
    children = _lock(go, say, gate)
    os.write(gate, b"\0")
    os.close(gate)
    poll = select.poll()
    poll.register(go, select.POLLIN)
    poll.register(children, select.POLLIN)
    while True:
        for fd, event in poll.poll():
            if fd == go:
                _obey(go, event)
            else:
                os.read(children, 128)
                _reap(target, say)


def _lock(go: int, say: int, gate: int) -> int:
    abi.prctl(abi.PR_SET_DUMPABLE, 0)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    abi.sigprocmask(abi.SIG_BLOCK, (SIGCHLD,))
    children = abi.signalfd((SIGCHLD,))
    enter.keep_only({0, 1, 2, go, say, gate, children})
    os.environ.clear()
    return children


def _obey(go: int, event: int) -> None:
    if event & select.POLLIN:
        for number in os.read(go, 64):
            if number == SIGKILL:
                _kill_tree()
            elif number:
                _send(usage.tree(os.getpid()), number)
    elif event & select.POLLHUP:
        _kill_tree()
        os._exit(1)  # the supervisor is gone: so is everything


def _reap(target: int, say: int) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            os._exit(1)
        if pid == target:
            _kill_tree()
            os.write(say, status.to_bytes(4, "little"))
            os._exit(0)
        if pid == 0:
            return


def _kill_tree() -> None:
    """Stop everything, so that nothing forks behind the walker's back; kill; look again."""
    quiet = 0
    while quiet < 2:
        living = [pid for pid in usage.tree(os.getpid()) if not _is_zombie(pid)]
        _send(living, SIGSTOP)
        _send(living, SIGKILL)
        quiet = 0 if living else quiet + 1
        _bury(living)


def _bury(living: list[int]) -> None:
    """Reap what was killed, except the target itself: its status is still to be told."""
    for pid in living:
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            continue  # somebody else's child until its parent is dead; the next walk sees it


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in {b"Z", b"X"}
    except OSError:
        return True


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue
