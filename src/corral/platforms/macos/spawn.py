"""Spawn a macOS target: supervisor -> watcher -> target.

Pipes (`watcher.Pipes`) connect the supervisor and the watcher. The program that the target executes
does not inherit them. Before exec, the target waits for a byte on `start`, so that the supervisor
learns its pid first. corral starts no thread before the last fork, because a process with threads
must not fork.
"""

from __future__ import annotations

import os
import select
import sys

from corral.abi import darwin_spawn
from corral.abi.signal_numbers import FORWARDED, SIGCONT, SIGKILL
from corral.plan.model import Results
from corral.platforms import steps
from corral.platforms.contract import Reaped, Usage
from corral.platforms.macos import process_tree, watcher
from corral.platforms.macos.mechanisms import loopback_proxy, seatbelt
from corral.platforms.macos.mechanisms.jetsam import FootprintLimit
from corral.platforms.macos.mechanisms.responsibility import Disclaimed
from corral.platforms.posix import run_directories, signals, target
from corral.platforms.steps import StepFailed
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn

    from corral.denials.records import Denials
    from corral.plan.model import Covers, Plan
    from corral.platforms.contract import NetworkServices, Service, Stdio
    from corral.platforms.macos.process_table import ProcessTable

ANSWER_MS = 100
"""If the watcher has not answered after this time, the target may have stopped it, so it gets
another SIGCONT.
"""
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Child:
    services: tuple[Service, ...] = ()

    def __init__(
        self, table: ProcessTable, pid: int, results: Results, pipes: watcher.Pipes, marker: str
    ) -> None:
        self.pid = pid
        self.pidfd = pipes.end
        self.exec_pipe = pipes.exec_result
        self._table = table
        self._results = results
        self._pipes = pipes
        self._marker = marker
        self._status = b""
        root = self._read_answer(watcher.ROOT.size)
        # The target still waits for `start`, so it exists, and its unique id can be read now. The
        # id is 0 if the target has already ended because a step failed.
        self._root: int = watcher.ROOT.unpack(root)[0] if root else 0
        self._unique = table.unique_id(self._root) if root else 0

    def signal(self, number: int) -> None:
        """Make the watcher send a signal to the target's processes. The target may have stopped the
        watcher, so continue it first.
        """
        try:
            os.kill(self.pid, SIGCONT)
            os.write(self._pipes.control, bytes([number]))
        except (ProcessLookupError, BrokenPipeError):
            pass  # the watcher has ended; the pipe `end` reports this

    def kill(self) -> None:
        self.signal(SIGKILL)

    def target(self) -> int:
        return self._root

    def preload(self) -> None:
        """Do nothing, because a run imports all of its modules when it starts."""

    def report_to(self, denials: Denials, plan: Plan) -> None:
        """Do nothing, because only the proxy sees denials, and `open_services` starts the proxy."""

    def open_services(self, plan: Plan, denials: Denials) -> NetworkServices:
        """Start the proxy if the policy allows hosts. Seatbelt itself does not report denials."""
        if not plan.allow:
            return None, ()
        return self._results.get(loopback_proxy.ProxyPort).serve(plan, denials), ()

    def watch_covers(self, covers: Covers) -> Service:
        raise NotImplementedError  # Seatbelt hides files with rules, not with mounts over them

    def measure(self, **_: object) -> Usage:
        """Return the tree's usage from the watcher, or zero if the target has ended."""
        self.signal(watcher.MEASURE)
        raw = self._read_answer(watcher.USAGE.size)
        if len(raw) < watcher.USAGE.size:
            # The target ended before the watcher could measure. The watcher has sent the target's
            # wait status instead of the usage.
            self._status = raw
            return Usage()
        cpu, memory, tasks = watcher.USAGE.unpack(raw)
        return Usage(cpu=cpu, memory=memory, tasks=tasks, certain=memory)

    def reap(self) -> Reaped:
        """Wait for the watcher, and return the target's wait status and the usage of the tree."""
        raw = self._status or self._read_answer(watcher.STATUS.size)
        if len(raw) < watcher.STATUS.size and self._root:
            # The watcher was killed, so kill the tree here. `grouped` is false, because launchd may
            # already have reaped the target, and another process may have its pid.
            process_tree.Tree(
                self._table, self._root, self._unique, grouped=False, marker=self._marker
            ).kill()
        limit = self._results.find(FootprintLimit)
        self._results.release()
        self._pipes.close()  # this makes the watcher end, so that the call below returns
        rusage = os.wait4(self.pid, 0)[2]
        ended = len(raw) == watcher.STATUS.size
        status: int | None = watcher.STATUS.unpack(raw)[0] if ended else None
        memory = rusage.ru_maxrss * MAXRSS_UNIT
        return Reaped(
            status=status,
            cpu=rusage.ru_utime + rusage.ru_stime,
            memory=memory,
            hit=("memory",) if limit and limit.has_killed(status, memory) else (),
        )

    def _read_answer(self, size: int) -> bytes:
        """Read an answer of `size` bytes from the watcher, or fewer if the pipe ends.

        Send SIGCONT to the watcher again and again until it answers, because without Seatbelt a
        target can stop it at any moment.
        """
        poll = select.poll()
        poll.register(self._pipes.answers, select.POLLIN)
        found = b""
        while len(found) < size:
            if not poll.poll(ANSWER_MS):
                os.kill(self.pid, SIGCONT)
                continue
            chunk = os.read(self._pipes.answers, size - len(found))
            if not chunk:
                break
            found += chunk
        return found


def spawn(plan: Plan, stdio: Stdio, table: ProcessTable) -> Child:
    results = Results()
    try:
        steps.apply(plan.steps, "supervisor", results)
        steps.apply(plan.steps, "clone", results)
        return _fork_watcher(plan, results, stdio, table)
    except BaseException:  # not only StepFailed: a lack of descriptors raises a plain OSError
        results.release()
        raise


def _fork_watcher(plan: Plan, results: Results, stdio: Stdio, table: ProcessTable) -> Child:
    own, watchers = watcher.open_pipes()
    signals.block(FORWARDED)  # so that no handler of the supervisor runs in the child
    try:
        pid = os.fork()
    except OSError as error:
        signals.unblock(FORWARDED)
        own.close()
        watchers.close()
        raise StepFailed("fork", error) from error
    if pid == 0:
        signals.reset()
        own.close()
        _become_watcher(plan, results, stdio, table, watchers)
    signals.unblock(FORWARDED)
    watchers.close()
    child = Child(table, pid, results, own, seatbelt.find_marker(plan.steps))
    child.signal(watcher.START)
    return child


def _become_watcher(
    plan: Plan, results: Results, stdio: Stdio, table: ProcessTable, pipes: watcher.Pipes
) -> NoReturn:
    """Run the watcher. Never return into the supervisor's code."""
    try:
        os.setsid()
        start_read, start_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            replace(pipes, exec_result=-1, start=start_write).close()
            _become_target(plan, results, stdio, start_read, pipes.exec_result)
        os.close(start_read)
        os.close(pipes.exec_result)
        # Now only the target can write to `exec_result`, so the supervisor sees the pipe's end when
        # the target executes or ends.
        pipes = replace(pipes, exec_result=-1, start=start_write)
        directory = results.find(run_directories.PrivateDirectory)
        marker = seatbelt.find_marker(plan.steps)
        watcher.TreeWatcher(table, pid, pipes, directory=directory, marker=marker).run()
    except BaseException as error:  # noqa: BLE001 - a bug here must not let anything run
        target.tell(pipes.exec_result, error, "watcher")


def _become_target(
    plan: Plan, results: Results, stdio: Stdio, start: int, exec_pipe: int
) -> NoReturn:
    try:
        start, exec_pipe = target.arrange_streams(stdio, start, exec_pipe)
        target.close_on_exec()
        target.enter(plan, results, start, exec_pipe)
        target.execute(plan.program, lambda: _exec(plan, results))
    except BaseException as error:  # noqa: BLE001 - a bug here must not let anything run
        target.tell(exec_pipe, error, "target")


def _exec(plan: Plan, results: Results) -> None:
    program, port = plan.program, results.find(loopback_proxy.ProxyPort)
    environment = {**dict(plan.environment), **(port.variables() if port else {})}
    if sys.platform == "darwin":
        limit = results.find(FootprintLimit)
        words = [f"{name}={value}" for name, value in environment.items()]
        darwin_spawn.exec_in_place(
            program.path,
            program.argv,
            words,
            megabytes=limit.megabytes if limit else 0,
            disclaim=results.find(Disclaimed) is not None,
        )
    os.execve(program.path, program.argv, environment)
