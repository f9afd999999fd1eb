"""Run as PID 1 of the sandbox: reap processes, pass signals on, and end the sandbox.

PID 1 is a fork of corral in the target's PID namespace, so a target might attack it. PID 1 protects
itself:

- It is not dumpable, and hidepid hides its environ, maps and mem in /proc.
- It has few descriptors, no capabilities, and a filter that allows little more than waiting.

The target starts only after all of this is done.
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


@record
class InitProcess:
    """The process that runs as init: PID 1 of the sandbox, or the subreaper.

    `pid` is its pid on the host.
    """

    pid: int


@record
class InitDescriptors:
    """Descriptors that the supervisor's steps open for init.

    After the clone the supervisor closes its own copies.
    """

    fds: list[int]

    def release(self) -> None:
        while self.fds:
            os.close(self.fds.pop())


@record
class Pipes:
    """One end of each pipe between the supervisor and init. The module `spawn` describes the pipes.

    `start` exists only in init, which uses it to let the target start.
    """

    control: int
    status: int
    exec_result: int
    start: int = -1

    def close(self) -> None:
        for fd in (self.control, self.status, self.exec_result):
            os.close(fd)


def follow_supervisor() -> None:
    """Make the kernel kill this process when its supervisor dies.

    The kernel clears this setting when the process changes its ids, so call this again afterwards.
    """
    abi.prctl(abi.PR_SET_PDEATHSIG, SIGKILL)


def run_init(target: int, pipes: Pipes, *, space: str) -> NoReturn:
    """Run as init. At the end, report the target's wait status, and whether the tmpfs with the
    target's private directories is full.

    `space` is one of these directories.
    """
    disk = os.open(space, os.O_PATH | os.O_CLOEXEC)
    children = lock_down(pipes, {disk})
    privileges.drop()
    abi.seccomp_set_filter(seccomp.init_filter(os.uname().machine))
    release_target(pipes)
    status = wait_for_end(target, pipes, children, on_control=_pass_on)
    _reap_the_rest()
    os.write(pipes.status, status.to_bytes(4, "little") + bytes([_is_full(disk)]))
    os._exit(0)


def _pass_on(numbers: bytes) -> None:
    if not numbers:
        os._exit(1)  # the supervisor has ended
    for number in numbers:
        try:
            os.kill(-1, number)  # every process in the namespace except this one
        except ProcessLookupError:
            pass


def _reap_the_rest() -> None:
    """Kill and reap all other processes, so that their CPU time is counted."""
    try:
        os.kill(-1, SIGKILL)
        while True:
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def _is_full(disk: int) -> bool:
    seen = os.fstatvfs(disk)
    return not (seen.f_bfree and seen.f_ffree)


def lock_down(pipes: Pipes, keep: Iterable[int]) -> int:
    """Make this process undumpable, so that no other process of the same user can trace it.

    Connect its standard streams to /dev/null, clear its environment, and close all descriptors
    except `pipes` and `keep`. Return a descriptor that becomes readable when a child has ended.
    """
    abi.prctl(abi.PR_SET_DUMPABLE, 0)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    abi.sigprocmask(abi.SIG_BLOCK, (SIGCHLD,))
    children = abi.signalfd((SIGCHLD,))
    own = (pipes.control, pipes.status, pipes.exec_result, pipes.start, children)
    steps.keep_only({0, 1, 2, *own, *keep})
    os.environ.clear()
    return children


def release_target(pipes: Pipes) -> None:
    os.close(pipes.exec_result)
    os.write(pipes.start, b"\0")
    os.close(pipes.start)


def wait_for_end(
    target: int, pipes: Pipes, children: int, *, on_control: Callable[[bytes], None]
) -> int:
    """Reap children until the target has ended, and return its wait status.

    `on_control` is called with the signal numbers that the supervisor sends, and with b"" when the
    supervisor has ended.
    """
    poll = select.poll()
    poll.register(pipes.control, select.POLLIN)
    poll.register(children, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == pipes.control:
                on_control(os.read(pipes.control, 64))
                continue
            os.read(children, 128)
            if (status := _reap(target)) is not None:
                return status


def _reap(target: int) -> int | None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            os._exit(1)
        if pid == target:
            return status
        if pid == 0:
            return None
