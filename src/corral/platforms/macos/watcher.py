"""The process between supervisor and target, which follows the tree and ends it.

It has a session of its own, so nothing that a terminal sends reaches it. Pipes connect it with the
supervisor. `commands` carries signal numbers and requests in, and its end of file means that corral
is gone. `answers` carries answers out. The end of file on `end` means that nothing of the target is
left. macOS has no parent-death signal and no subreaper, so the watcher kills the tree when corral
is killed. A target that can signal the user's processes could kill the watcher first; the
supervisor then ends the tree. It can kill both at once only without Seatbelt.
"""

from __future__ import annotations

import os
import select
import struct
import sys

from corral.abi.signal_numbers import SIGCHLD, SIGKILL
from corral.platforms.macos.process_tree import Tree
from corral.platforms.posix import signals, target
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from corral.platforms.macos.process_table import Table
    from corral.platforms.posix.run_directories import PrivateDirectory

START = 0
MEASURE = 0x80
"""On `commands`, beside signal numbers."""
ROOT = struct.Struct("<i")
USAGE = struct.Struct("<dQI")
STATUS = struct.Struct("<i")
"""On `answers`: the target's pid once, a usage for each request, and a wait status at the end."""


@record
class Pipes:
    """The watcher's ends. A byte on `gate` lets the target execute."""

    commands: int
    answers: int
    end: int
    gate: int


class TreeWatcher:
    """Removes `directory` if corral is gone; otherwise the supervisor does."""

    def __init__(
        self, table: Table, root: int, pipes: Pipes, *, directory: PrivateDirectory | None
    ) -> None:
        self._target = root
        self._table = table
        self._pipes = pipes
        self._directory = directory
        self._children = signals.SignalPipe(
            (SIGCHLD,)
        )  # before the id is read, so that no end is missed
        self._unique = table.unique_id(root)
        self._tree = Tree(table, root, self._unique, grouped=True)

    def run(self) -> NoReturn:
        os.write(self._pipes.answers, ROOT.pack(self._target))
        self._tree.walk()
        self._lock_down()
        if not self._unique:
            self._end()  # a step has failed already
        poll = select.poll()
        for fd in (self._pipes.commands, self._children.fileno(), self._table.fileno()):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                self._handle(fd)

    def _lock_down(self) -> None:
        """Give up the streams, which are the target's alone, the environment, and all descriptors
        but the watcher's own.
        """
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.environ.clear()
        os.chdir("/")
        pipes, children = self._pipes, self._children
        own = (pipes.commands, pipes.answers, pipes.end, pipes.gate)
        target.close_others(
            {0, 1, 2, *own, children.fileno(), children.writer, self._table.fileno()}
        )

    def _handle(self, fd: int) -> None:
        if fd == self._pipes.commands:
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
                self._release_target()
            else:
                self._tree.signal(number)

    def _release_target(self) -> None:
        try:
            os.write(self._pipes.gate, b"\0")
        except BrokenPipeError:
            pass  # the target has ended at an earlier step

    def _end(self, *, orphaned: bool = False) -> NoReturn:
        try:
            self._tree.kill()
            status = os.waitpid(self._target, 0)[1]
            if orphaned and self._directory is not None:
                self._directory.release()
            os.write(self._pipes.answers, STATUS.pack(status))
        finally:
            os._exit(0)
