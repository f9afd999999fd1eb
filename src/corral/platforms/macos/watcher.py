"""The process between supervisor and target: it keeps the tree together and ends it.

It has a session of its own, so nothing that a terminal sends reaches it. Pipes connect it with the
supervisor: `go` carries signal numbers and questions in, and its end of file means that corral is
gone; `say` carries answers out; the end of file on `end` means that nothing of the target is left.
There is no parent-death signal on macOS and no subreaper, so this is what kills the tree when
corral is killed. A target that can signal its user's processes could kill the watcher first: the
supervisor then ends the tree. Both at once it can only kill where no Seatbelt holds it.
"""

from __future__ import annotations

import os
import select
import struct
import sys

from corral.abi.signal_numbers import SIGCHLD, SIGKILL
from corral.platforms.macos.process_tree import Tree
from corral.platforms.posix import signals, target, work_directory
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from corral.platforms.macos.process_table import Table

START = 0
MEASURE = 0x80
"""On `go`, beside signal numbers."""
ROOT = struct.Struct("<i")
USAGE = struct.Struct("<dQI")
STATUS = struct.Struct("<i")
"""On `say`: the target once, an answer to each question, and a wait status at the end."""


@record
class Pipes:
    go: int
    say: int
    end: int
    gate: int


class Watcher:
    """`directory` is removed here if corral is gone; otherwise that is the supervisor's to do."""

    def __init__(self, table: Table, root: int, pipes: Pipes, *, directory: str) -> None:
        self._target = root
        self._table = table
        self._pipes = pipes
        self._directory = directory
        self._children = signals.Wakeup(
            (SIGCHLD,)
        )  # before the first look, so that no end is missed
        self._unique = table.unique(root)
        self._tree = Tree(table, root, self._unique, grouped=True)

    def run(self) -> NoReturn:
        pipes = self._pipes
        os.write(pipes.say, ROOT.pack(self._target))
        self._tree.walk()
        own = {pipes.go, pipes.say, pipes.end, pipes.gate}
        self._give_up(own)
        if not self._unique:
            self._end()  # a step has failed already
        poll = select.poll()
        for fd in (pipes.go, self._children.fileno(), self._table.fileno()):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                self._answer(fd)

    def _give_up(self, keep: set[int]) -> None:
        """No streams, environment or descriptors but these: the streams are the target's alone."""
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.environ.clear()
        os.chdir("/")
        target.close_others({0, 1, 2, *keep, *self._own()})

    def _own(self) -> set[int]:
        written = self._children.writer
        return {fd for fd in (self._children.fileno(), written, self._table.fileno()) if fd >= 0}

    def _answer(self, fd: int) -> None:
        if fd == self._pipes.go:
            self._obey(os.read(fd, 64))
        elif fd == self._children.fileno():
            self._children.read()
            if self._table.unique(self._target) != self._unique:
                self._end()
        else:
            self._table.drain()
            self._tree.walk()

    def _obey(self, told: bytes) -> None:
        if not told:
            self._end(alone=True)
        for number in told:
            if number == SIGKILL:
                self._end()
            elif number == MEASURE:
                used = self._tree.measure()
                os.write(self._pipes.say, USAGE.pack(used.cpu, used.memory, used.tasks))
            elif number == START:
                self._let_go()
            else:
                self._tree.signal(number)

    def _let_go(self) -> None:
        try:
            os.write(self._pipes.gate, b"\0")
        except BrokenPipeError:
            pass  # it has ended at a step before

    def _end(self, *, alone: bool = False) -> NoReturn:
        try:
            self._tree.kill()
            status = os.waitpid(self._target, 0)[1]
            if alone and self._directory:
                work_directory.remove(self._directory)
            os.write(self._pipes.say, STATUS.pack(status))
        finally:
            os._exit(0)
