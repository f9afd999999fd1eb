"""Watch and kill a target's processes from a process between supervisor and target.

macOS has no parent-death signal and no subreaper, so this process, the watcher, kills the tree when
corral is killed. It has its own session, and therefore gets no signals from a terminal. If the
watcher itself is killed, the supervisor kills the tree. Without Seatbelt a target can signal the
user's processes, so it could kill both the watcher and the supervisor.
"""

from __future__ import annotations

import os
import select
import struct
import sys

from corral.abi.signal_numbers import SIGCHLD, SIGKILL, SIGPIPE
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
"""The byte on `control` that asks for the usage. Other bytes are signal numbers or START."""
ROOT = struct.Struct("<i")
USAGE = struct.Struct("<dQI")
STATUS = struct.Struct("<i")
"""The formats of the watcher's messages on `answers`. The watcher first writes the target's pid
(ROOT), then the usage (USAGE) whenever the supervisor asks for it, and finally the wait status
(STATUS).
"""


@record
class Pipes:
    """One process's ends of the pipes between supervisor, watcher and target.

    -1 means that the process does not have this end.
    """

    control: int  # signal numbers and requests; end of file means that corral has ended
    answers: int  # the watcher's answers
    # If a step fails, the target writes the step's name and error. Otherwise it writes EXECUTED
    # just before exec, and end of file after that means that exec succeeded. End of file without
    # any data means that the target died before exec.
    exec_result: int
    end: int  # end of file means that the whole tree has ended
    start: int = -1  # a byte on this pipe lets the target call exec

    def descriptors(self) -> tuple[int, ...]:
        ends = (self.control, self.answers, self.exec_result, self.end, self.start)
        return tuple(fd for fd in ends if fd >= 0)

    def close(self) -> None:
        for fd in self.descriptors():
            os.close(fd)


def open_pipes() -> tuple[Pipes, Pipes]:
    """Open the pipes. Return the supervisor's ends and the watcher's ends."""
    control, answers, executed, end = (os.pipe() for _ in range(4))
    return (
        Pipes(control=control[1], answers=answers[0], exec_result=executed[0], end=end[0]),
        Pipes(control=control[0], answers=answers[1], exec_result=executed[1], end=end[1]),
    )


class TreeWatcher:
    """Watches the target's tree, and kills it when the target or corral ends.

    Afterwards it removes the private directory, because corral may have been killed before it could
    do so. `marker` identifies the target's Seatbelt profile.
    """

    def __init__(
        self,
        table: ProcessTable,
        root: int,
        pipes: Pipes,
        *,
        directory: PrivateDirectory | None,
        marker: str,
    ) -> None:
        self._target = root
        self._table = table
        self._pipes = pipes
        self._directory = directory
        # Open the signal pipe before reading the target's unique id. If the target ends in between,
        # the pipe gets SIGCHLD. SIGPIPE is caught so that it does not kill the watcher: if the
        # supervisor is killed, the watcher still has to kill the tree.
        self._children = signals.SignalPipe((SIGCHLD, SIGPIPE))
        self._unique = table.unique_id(root)
        self._tree = process_tree.Tree(table, root, self._unique, grouped=True, marker=marker)

    def run(self) -> NoReturn:
        self._answer(ROOT.pack(self._target))
        self._tree.walk()
        self._lock_down()
        if not self._unique:
            self._end()  # the target has ended, because a step has failed
        poll = select.poll()
        for fd in (self._pipes.control, self._children.fileno(), self._table.fileno()):
            if fd >= 0:  # the table's descriptor is -1 if the table cannot report forks
                poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                self._handle(fd)

    def _lock_down(self) -> None:
        """Close the inherited descriptors and the target's streams, and clear the environment."""
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
            self._end()
        for number in commands:
            if number == SIGKILL:
                self._end()
            elif number == MEASURE:
                used = self._tree.measure()
                self._answer(USAGE.pack(used.cpu, used.memory, used.tasks))
            elif number == START:
                try:
                    os.write(self._pipes.start, b"\0")
                except BrokenPipeError:
                    pass  # the target is already gone, because its preparation failed
            else:
                self._tree.signal(number)

    def _answer(self, answer: bytes) -> None:
        try:
            os.write(self._pipes.answers, answer)
        except BrokenPipeError:
            pass  # corral has ended; the watcher sees this at the end of the pipe `control`

    def _end(self) -> NoReturn:
        """Kill the tree and report its end. Then wait until corral has closed `control`, remove the
        private directory and exit.
        """
        try:
            self._tree.kill()
            self._answer(STATUS.pack(os.waitpid(self._target, 0)[1]))
            os.close(self._pipes.answers)
            os.close(self._pipes.end)
            while os.read(self._pipes.control, 64):
                pass
            if self._directory is not None:
                self._directory.release()
        finally:
            os._exit(0)
