"""Spawn a macOS target: supervisor -> watcher -> target.

The exec pipe carries a failed step out, or one mark just before exec: its end of file after the
mark is a successful exec, and without it the target died before. A `gate` keeps the target from
executing until the supervisor knows its pid. A process without threads prepares all of this.
"""

from __future__ import annotations

import os
import sys

from corral.abi import darwin_spawn
from corral.abi.signal_numbers import FORWARDED, SIGCONT, SIGKILL
from corral.plan.results import Results
from corral.platforms import steps
from corral.platforms.contract import Reaped, Usage
from corral.platforms.macos import watcher
from corral.platforms.macos.mechanisms import loopback_proxy
from corral.platforms.macos.mechanisms.jetsam import FootprintLimit
from corral.platforms.macos.process_tree import Tree
from corral.platforms.posix import run_directories, signals, target
from corral.platforms.steps import StepFailed
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from corral.denials.records import Denials
    from corral.plan.model import Plan
    from corral.platforms.contract import NetworkServices, Stdio
    from corral.platforms.macos.process_table import Table

MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Child:
    """The supervisor's hold on one tree: the watcher does what it asks for."""

    def __init__(
        self,
        table: Table,
        pid: int,
        results: Results,
        *,
        commands: int,
        exec_pipe: int,
        answers: int,
        end: int,
    ) -> None:
        self.pid = pid
        self.pidfd = end
        self.exec_pipe = exec_pipe
        self._table = table
        self._results = results
        self._commands = commands
        self._answers = answers
        self._status = b""
        root = _read_exactly(answers, watcher.ROOT.size)
        # Behind its gate the target cannot have ended unless the watcher has too.
        self._root: int = watcher.ROOT.unpack(root)[0] if root else 0
        self._unique = table.unique_id(self._root) if root else 0

    def signal(self, number: int) -> None:
        """Continue the watcher first: a stopped one would never read its commands, and the
        supervisor would wait for its answer for ever.
        """
        try:
            os.kill(self.pid, SIGCONT)
            os.write(self._commands, bytes([number]))
        except (ProcessLookupError, BrokenPipeError):
            pass  # the watcher is gone, and `end` reports it

    def kill(self) -> None:
        self.signal(SIGKILL)

    def target(self) -> int:
        return self._root

    def network_services(self, plan: Plan, denials: Denials | None) -> NetworkServices:
        """Start the proxy. There is nothing else: Seatbelt reports no other connections."""
        return self._results.get(loopback_proxy.ProxyPort).serve(plan, denials), ()

    def measure(self, *, exact: bool = False) -> Usage:  # noqa: ARG002 - footprints are exact
        self.signal(watcher.MEASURE)
        raw = _read_exactly(self._answers, watcher.USAGE.size)
        if len(raw) < watcher.USAGE.size:
            self._status = raw  # the target ended before the watcher could answer
            return Usage()
        cpu, memory, tasks = watcher.USAGE.unpack(raw)
        return Usage(cpu=cpu, memory=memory, tasks=tasks)

    def reap(self) -> Reaped:
        """Wait for the watcher; return the target's wait status and what the watcher reaped."""
        raw = self._status or _read_exactly(self._answers, watcher.STATUS.size)
        if len(raw) < watcher.STATUS.size and self._root:
            # The watcher was killed. launchd has adopted the target and may have reaped it.
            Tree(self._table, self._root, self._unique, grouped=False).kill()
        rusage = os.wait4(self.pid, 0)[2]
        limit = self._results.find(FootprintLimit)
        for fd in (self.pidfd, self._commands, self._answers, self.exec_pipe):
            os.close(fd)
        self._results.release()
        ended = len(raw) == watcher.STATUS.size
        status: int | None = watcher.STATUS.unpack(raw)[0] if ended else None
        memory = rusage.ru_maxrss * MAXRSS_UNIT
        return Reaped(
            status=status,
            cpu=rusage.ru_utime + rusage.ru_stime,
            memory=memory,
            hit=("memory",) if limit and limit.has_killed(status, memory) else (),
        )


def _read_exactly(fd: int, size: int) -> bytes:
    """Return `size` bytes, or fewer at the end of the pipe."""
    found = b""
    while len(found) < size and (chunk := os.read(fd, size - len(found))):
        found += chunk
    return found


def spawn(plan: Plan, stdio: Stdio, table: Table) -> Child:
    results = Results()
    try:
        steps.apply(plan.steps, "supervisor", results)
        steps.apply(plan.steps, "clone", results)
        return _fork_watcher(plan, results, stdio, table)
    except StepFailed:
        results.release()
        raise


def _fork_watcher(plan: Plan, results: Results, stdio: Stdio, table: Table) -> Child:
    commands_read, commands_write = os.pipe()
    exec_read, exec_write = os.pipe()
    answers_read, answers_write = os.pipe()
    end_read, end_write = os.pipe()
    signals.block(FORWARDED)  # a signal to the fork is not one to the supervisor
    try:
        pid = os.fork()
    except OSError as error:
        raise StepFailed("fork", error) from error
    if pid == 0:
        signals.reset()
        for fd in (commands_write, exec_read, answers_read, end_read):
            os.close(fd)
        pipes = watcher.Pipes(commands=commands_read, answers=answers_write, end=end_write, gate=-1)
        _become_watcher(plan, results, stdio, table, pipes, exec_pipe=exec_write)
    signals.unblock(FORWARDED)
    for fd in (commands_read, exec_write, answers_write, end_write):
        os.close(fd)
    child = Child(
        table,
        pid,
        results,
        commands=commands_write,
        exec_pipe=exec_read,
        answers=answers_read,
        end=end_read,
    )
    child.signal(watcher.START)
    return child


def _become_watcher(
    plan: Plan,
    results: Results,
    stdio: Stdio,
    table: Table,
    pipes: watcher.Pipes,
    *,
    exec_pipe: int,
) -> NoReturn:
    """Never return into the supervisor's code, whatever happens here."""
    try:
        os.setsid()
        gate_read, gate_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            for fd in (pipes.commands, pipes.answers, pipes.end, gate_write):
                os.close(fd)
            _become_target(plan, results, stdio, gate=gate_read, exec_pipe=exec_pipe)
        os.close(gate_read)
        os.close(exec_pipe)
        exec_pipe = -1  # from here on only the target writes to it
        directory = results.find(run_directories.PrivateDirectory)
        pipes = replace(pipes, gate=gate_write)
        watcher.TreeWatcher(table, pid, pipes, directory=directory).run()
    except BaseException as error:  # noqa: BLE001 - a bug here must not let anything run
        target.tell(exec_pipe, error, "watcher")


def _become_target(
    plan: Plan, results: Results, stdio: Stdio, *, gate: int, exec_pipe: int
) -> NoReturn:
    try:
        gate, exec_pipe = target.arrange(stdio, gate, exec_pipe)
        target.enter(plan, results, gate=gate, exec_pipe=exec_pipe)
        target.execute(plan.program, lambda: _exec(plan, results))
    except BaseException as error:  # noqa: BLE001 - a bug here must not let anything run
        target.tell(exec_pipe, error, "target")


def _exec(plan: Plan, results: Results) -> None:
    program, port = plan.program, results.find(loopback_proxy.ProxyPort)
    environment = {**dict(plan.environment), **(port.variables() if port else {})}
    if sys.platform == "darwin":
        limit = results.find(FootprintLimit)
        darwin_spawn.exec_in_place(
            program.path,
            program.argv,
            [f"{name}={value}" for name, value in environment.items()],
            megabytes=limit.megabytes if limit else 0,
        )
    os.execve(program.path, program.argv, environment)
