"""What init and the guardian have in common: give up everything, let the target go, and wait.

`born` stays open until everything is given up: a keeper that cannot lock itself says why.
"""

from __future__ import annotations

import os
import select
import sys

from corral.abi import linux as abi
from corral.posix import enter
from corral.posix.signals import SIGCHLD
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn


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
    enter.keep_only({0, 1, 2, *own, *keep})
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
