"""The process between supervisor and target, which follows the tree and ends it.

It has a session of its own, so nothing that a terminal sends reaches it. macOS has no parent-death
signal and no subreaper, so the watcher kills the tree when corral is killed. A target that can
signal the user's processes could kill the watcher first; the supervisor then ends the tree. It can
kill both at once only without Seatbelt.
"""

from __future__ import annotations

import os
import select
import struct
import sys

from corral.abi.signal_numbers import SIGCHLD, SIGKILL
from corral.platforms.macos import process_tree
from corral.platforms.posix import signals, target
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from corral.platforms.macos.process_table import ProcessTable
    from corral.platforms.posix.run_directories import PrivateDirectory

START = 0
MEASURE = 0x80
"""On `control`, beside signal numbers."""
ROOT = struct.Struct("<i")
USAGE = struct.Struct("<dQI")
STATUS = struct.Struct("<i")
"""On `answers`: the target's pid once, a usage for each request, and a wait status at the end."""


@record
class Pipes:
    """One side's ends of the pipes between supervisor, watcher and target; -1 is closed.

    `control` carries signal numbers and requests to the watcher, and its end of file means that
    corral is gone. `answers` carries the watcher's answers. `exec_result` carries the target's
    failed step, or one mark just before exec: its end of file after the mark is a successful exec,
    and without it the target died before. The end of file on `end` means that nothing of the target
    is left. A byte on `start` lets the target execute.
    """

    control: int
    answers: int
    exec_result: int
    end: int
    start: int = -1

    def descriptors(self) -> tuple[int, ...]:
        ends = (self.control, self.answers, self.exec_result, self.end, self.start)
        return tuple(fd for fd in ends if fd >= 0)

    def close(self) -> None:
        for fd in self.descriptors():
            os.close(fd)


def open_pipes() -> tuple[Pipes, Pipes]:
    """Return the supervisor's ends and the watcher's."""
    control, answers, executed, end = (os.pipe() for _ in range(4))
    return (
        Pipes(control=control[1], answers=answers[0], exec_result=executed[0], end=end[0]),
        Pipes(control=control[0], answers=answers[1], exec_result=executed[1], end=end[1]),
    )


class TreeWatcher:
    """Removes `directory` if corral is gone; otherwise the supervisor does."""

    def __init__(
        self, table: ProcessTable, root: int, pipes: Pipes, *, directory: PrivateDirectory | None
    ) -> None:
        self._target = root
        self._table = table
        self._pipes = pipes
        self._directory = directory
        # Before the id is read, so that no end is missed.
        self._children = signals.SignalPipe((SIGCHLD,))
        self._unique = table.unique_id(root)
        self._tree = process_tree.Tree(table, root, self._unique, grouped=True)

    def run(self) -> NoReturn:
        os.write(self._pipes.answers, ROOT.pack(self._target))
        self._tree.walk()
        self._lock_down()
        if not self._unique:
            self._end()  # a step has failed already
        poll = select.poll()
        for fd in (self._pipes.control, self._children.fileno(), self._table.fileno()):
            if fd >= 0:  # a table that cannot report forks has -1
                poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                self._handle(fd)

    def _lock_down(self) -> None:
        """Give up the target's streams, the environment, and all descriptors of others."""
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.environ.clear()
        os.chdir("/")
        own = (self._children.fileno(), self._children.writer, self._table.fileno())
        target.close_others({0, 1, 2, *own, *self._pipes.descriptors()})

    def _handle(self, fd: int) -> None:
        if fd == self._pipes.control:
            self._run_commands(os.read(fd, 64))
        elif fd == self._children.fileno():
            self._children.read()
            if self._table.unique_id(self._target) != self._unique:
                self._end()
        else:
            self._table.drain()
            self._tree.walk()

    def _run_commands(self, commands: bytes) -> None:
        if not commands:
            self._end(orphaned=True)
        for number in commands:
            if number == SIGKILL:
                self._end()
            elif number == MEASURE:
                used = self._tree.measure()
                os.write(self._pipes.answers, USAGE.pack(used.cpu, used.memory, used.tasks))
            elif number == START:
                try:
                    os.write(self._pipes.start, b"\0")
                except BrokenPipeError:
                    pass  # the target has ended at an earlier step
            else:
                self._tree.signal(number)

    def _end(self, *, orphaned: bool = False) -> NoReturn:
        try:
            self._tree.kill()
            status = os.waitpid(self._target, 0)[1]
            if orphaned and self._directory is not None:
                self._directory.release()
            os.write(self._pipes.answers, STATUS.pack(status))
        finally:
            os._exit(0)
