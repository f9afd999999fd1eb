"""How a macOS target comes into the world: supervisor -> watcher -> target.

`born` carries a failed step out, or one mark just before exec: its end of file after the mark is a
successful exec, and without it a death on the way. A `gate` holds the target back until the
supervisor knows whom it is about to start. All of this is prepared by a process without threads.
"""

from __future__ import annotations

import os
import sys

from corral.abi import darwin_spawn
from corral.abi.signal_numbers import FORWARDED, SIGCONT, SIGKILL
from corral.platforms import steps
from corral.platforms.macos import watcher
from corral.platforms.macos.mechanisms import jetsam
from corral.platforms.macos.process_table import Usage
from corral.platforms.macos.process_tree import Tree
from corral.platforms.posix import signals, target, work_directory
from corral.platforms.posix.watch import Reaped
from corral.platforms.steps import EXECUTED, Scene, StepFailed

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from corral.denials.records import Denials
    from corral.plan.model import Plan
    from corral.platforms.macos.process_table import Table
    from corral.platforms.posix.watch import Ways

    Stdio = tuple[int, int, int]

UMASK = 0o022
MAXRSS = 1 if sys.platform == "darwin" else 1024
"""The unit of ru_maxrss."""


class Child:
    """The supervisor's hold on one tree: what it asks for, the watcher does."""

    def __init__(
        self,
        table: Table,
        pid: int,
        scene: Scene,
        *,
        limit: int,
        go: int,
        born: int,
        say: int,
        end: int,
    ) -> None:
        self.pid = pid
        self.pidfd = end
        self.born = born
        self._table = table
        self._scene = scene
        self._limit = limit
        self._go = go
        self._say = say
        self._status = b""
        told = _exactly(say, watcher.ROOT.size)
        # Behind its gate the target cannot have ended unless everything has.
        self._root: int = watcher.ROOT.unpack(told)[0] if told else 0
        self._unique = table.unique(self._root) if told else 0

    def signal(self, number: int) -> None:
        """A watcher that somebody has stopped would not hear, and whoever waits for it would wait
        for ever.
        """
        try:
            os.kill(self.pid, SIGCONT)
            os.write(self._go, bytes([number]))
        except (ProcessLookupError, BrokenPipeError):
            pass  # the watcher is gone: `end` says so

    def kill(self) -> None:
        self.signal(SIGKILL)

    def target(self) -> int:
        return self._root

    def ways(self, plan: Plan, denials: Denials | None) -> Ways:
        """The door, and no tap: what goes elsewhere ends at Seatbelt, which tells nobody."""
        from corral.platforms.macos.mechanisms import loopback_proxy

        (listener,), self._scene.doors = self._scene.doors, ()
        return loopback_proxy.serve(plan, listener, self._scene.password, denials), ()

    def measure(self, *, exact: bool = False) -> Usage:  # noqa: ARG002 - footprints are exact
        self.signal(watcher.MEASURE)
        raw = _exactly(self._say, watcher.USAGE.size)
        if len(raw) < watcher.USAGE.size:
            self._status = raw  # it was over before it could answer
            return Usage()
        cpu, memory, tasks = watcher.USAGE.unpack(raw)
        return Usage(cpu=cpu, memory=memory, tasks=tasks)

    def reap(self) -> Reaped:
        """Wait for the watcher: the target's wait status, and what was used by those it reaped."""
        said = self._status or _exactly(self._say, watcher.STATUS.size)
        if len(said) < watcher.STATUS.size and self._root:
            # Somebody killed the watcher. Its child is launchd's now, which may have reaped it.
            Tree(self._table, self._root, self._unique, grouped=False).kill()
        rusage = os.wait4(self.pid, 0)[2]
        own = (self.pidfd, self._go, self._say, self.born)
        for fd in (*own, *self._scene.doors, *self._scene.kept):
            os.close(fd)
        if self._scene.directory:
            work_directory.remove(self._scene.directory)
        ended = len(said) == watcher.STATUS.size
        status: int | None = watcher.STATUS.unpack(said)[0] if ended else None
        memory = rusage.ru_maxrss * MAXRSS
        return Reaped(
            status=status,
            cpu=rusage.ru_utime + rusage.ru_stime,
            memory=memory,
            hit=("memory",) if jetsam.killed(status, memory, self._limit) else (),
        )


def _exactly(fd: int, size: int) -> bytes:
    """`size` bytes, or what there was before the end."""
    found = b""
    while len(found) < size and (chunk := os.read(fd, size - len(found))):
        found += chunk
    return found


def birth(plan: Plan, stdio: Stdio, table: Table) -> Child:
    scene = Scene()
    try:
        steps.apply(plan.steps, "supervisor", scene)
        return _conceive(plan, scene, stdio, table)
    except StepFailed:
        for fd in (*scene.doors, *scene.kept):
            os.close(fd)
        if scene.directory:
            work_directory.remove(scene.directory)
        raise


def _conceive(plan: Plan, scene: Scene, stdio: Stdio, table: Table) -> Child:
    go_read, go_write = os.pipe()
    born_read, born_write = os.pipe()
    say_read, say_write = os.pipe()
    end_read, end_write = os.pipe()
    signals.block(FORWARDED)  # a signal to the fork is none to us
    try:
        pid = os.fork()
    except OSError as error:
        raise StepFailed("fork", error) from error
    if pid == 0:
        signals.reset()
        for fd in (go_write, born_read, say_read, end_read):
            os.close(fd)
        own = watcher.Pipes(go=go_read, say=say_write, end=end_write, gate=-1)
        _become_watcher(plan, scene, stdio, table, own, born=born_write)
    signals.unblock(FORWARDED)
    for fd in (go_read, born_write, say_write, end_write):
        os.close(fd)
    pipes = {"go": go_write, "born": born_read, "say": say_read, "end": end_read}
    child = Child(table, pid, scene, limit=_limit(plan), **pipes)
    child.signal(watcher.START)
    return child


def _become_watcher(
    plan: Plan, scene: Scene, stdio: Stdio, table: Table, pipes: watcher.Pipes, *, born: int
) -> NoReturn:
    """Whatever happens here, this never returns into the supervisor's code."""
    try:
        os.setsid()
        gate_read, gate_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            for fd in (pipes.go, pipes.say, pipes.end, gate_write):
                os.close(fd)
            _become_target(plan, scene, stdio, gate=gate_read, born=born)
        os.close(gate_read)
        os.close(born)
        born = -1  # from here on only the target has something to say on it
        held = watcher.Pipes(go=pipes.go, say=pipes.say, end=pipes.end, gate=gate_write)
        watcher.Watcher(table, pid, held, directory=scene.directory).run()
    except BaseException as error:  # noqa: BLE001 - a bug here must not let anything run
        target.tell(born, error, "watcher")


def _become_target(plan: Plan, scene: Scene, stdio: Stdio, *, gate: int, born: int) -> NoReturn:
    try:
        gate, born = target.arrange(stdio, gate, born)
        os.setsid()
        os.umask(UMASK)
        os.chdir(plan.program.cwd or "/")
        steps.apply(plan.steps, "target", scene)
        steps.verify(plan.steps, scene)
        if os.read(gate, 1) != b"\0":
            os._exit(1)  # the watcher is gone
        os.write(born, EXECUTED)
        _exec(plan, scene)
    except BaseException as error:  # noqa: BLE001 - a bug here must not let anything run
        target.tell(born, error, "target")


def _limit(plan: Plan) -> int:
    """In mebibytes, 0 for none."""
    return next((step.megabytes for step in plan.steps if isinstance(step, jetsam.Jetsam)), 0)


def _exec(plan: Plan, scene: Scene) -> NoReturn:
    program = plan.program
    environment = {**dict(plan.environment), **dict(scene.variables)}
    try:
        target.check_same(program)
        if sys.platform == "darwin":
            words = [f"{name}={value}" for name, value in environment.items()]
            darwin_spawn.exec_in_place(program.path, program.argv, words, megabytes=_limit(plan))
        os.execve(program.path, program.argv, environment)
    except OSError as error:
        raise StepFailed("exec", OSError(error.errno, error.strerror, program.path)) from error
    raise StepFailed("exec", "returned")
