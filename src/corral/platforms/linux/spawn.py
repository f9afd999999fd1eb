"""Start a Linux target: supervisor -> init (PID 1 of the sandbox) -> target.

Three pipes connect them, all close-on-exec, and the target gets none of them. The control pipe
carries signal numbers from the supervisor to init, and its end of file means that the supervisor is
gone. The exec pipe carries a failed step out, or one mark just before exec: its end of file after
the mark is a successful exec, and without the mark a death on the way. The status pipe carries the
target's wait status.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.abi.signal_numbers import SIGKILL
from corral.plan.model import Results
from corral.platforms import steps
from corral.platforms.contract import Reaped
from corral.platforms.linux import init
from corral.platforms.linux.mechanisms import cgroup, namespaces, root_filesystem, seccomp
from corral.platforms.posix import stream_state, target
from corral.platforms.steps import EXECUTED, StepFailed
from corral.record import replace

if sys.platform != "win32":
    # Here and not at the point of use: inside, the standard library cannot be read.
    import fcntl

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from corral.denials.records import Denials
    from corral.plan.model import Covers, Plan
    from corral.platforms.contract import NetworkServices, Service, Stdio, Usage
    from corral.platforms.posix.stream_relay import Relay

    RunInit = Callable[[int, init.Pipes], NoReturn]


UMASK = 0o022


class Child:
    """The supervisor's view of one sandbox."""

    def __init__(
        self, pid: int, pidfd: int, pipes: init.Pipes, results: Results, *, has_pid_namespace: bool
    ) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.exec_pipe = pipes.exec_result
        self._pipes = pipes
        self._results = results
        self._has_pid_namespace = has_pid_namespace

    def signal(self, number: int) -> None:
        """Send a signal to every process of the target; init passes it on."""
        try:
            os.write(self._pipes.control, bytes([number]))
        except BrokenPipeError:
            pass  # init is gone, and everything with it

    def kill(self) -> None:
        """Kill PID 1: the kernel then kills its namespace before PID 1 can be waited for.

        A subreaper has to kill the tree itself, so it is asked to.
        """
        if not self._has_pid_namespace:
            self.signal(SIGKILL)
            return
        try:
            abi.pidfd_send_signal(self.pidfd, SIGKILL)
        except ProcessLookupError:
            pass

    def target(self) -> int:
        """Return the target's pid on the host: init's only child from before the target ran."""
        try:
            with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as file:
                return int(file.read().split()[0])
        except (OSError, IndexError):
            return 0

    def network_services(self, plan: Plan, denials: Denials | None) -> NetworkServices:
        from corral.platforms.linux.network_services import open_services

        return open_services(plan, self._results, denials)

    def watch_covers(self, covers: Covers) -> Service:
        from corral.platforms.linux.replaced_files import ReplacedFiles

        return ReplacedFiles(covers, self)

    def measure(
        self, *, exact: bool = False, interrupted: Callable[[], bool] = lambda: False
    ) -> Usage:
        from corral.platforms.linux import usage
        from corral.platforms.linux.mechanisms.sysv_ipc import SysvLists

        lists = self._results.find(SysvLists)
        objects = lists.count() if lists and not interrupted() else 0
        return usage.measure(self.pid, exact=exact, objects=objects, interrupted=interrupted)

    def reap(self) -> Reaped:
        """Wait for init. Return the target's wait status, if init sent it, and the tree's use."""
        rusage = os.wait4(self.pid, 0)[2]
        status = os.read(self._pipes.status, 5)
        self._pipes.close()
        os.close(self.pidfd)
        reaped = Reaped(
            status=int.from_bytes(status[:4], "little") if len(status) >= 4 else None,
            cpu=rusage.ru_utime + rusage.ru_stime,
            memory=rusage.ru_maxrss * 1024,
            hit=("disk",) if status[4:] == b"\x01" else (),
        )
        if (leaf := self._results.find(cgroup.Cgroup)) is not None:
            reaped = leaf.add_counts(reaped)
        if (kept := self._results.find(stream_state.StreamStates)) is not None:
            reaped = replace(reaped, restored=kept.restore())
        self._results.release()
        return reaped


def spawn(plan: Plan, stdio: Stdio) -> Child:
    results = Results()
    results.add(init.InitDescriptors(fds=[]))
    try:
        results.add(stream_state.keep(stdio))
        relay = _relay_files(plan, results, stdio)
        steps.apply(plan.steps, "supervisor", results)
        steps.apply(plan.steps, "clone", results)
        return _clone(plan, results, relay.stdio if relay else stdio, relay)
    except StepFailed:
        results.release()
        raise


def _relay_files(plan: Plan, results: Results, stdio: Stdio) -> Relay | None:
    """Without Landlock, put pipes in place of the streams that are files."""
    held = [one.mechanism for one in plan.controls if one.control == "filesystem"]
    if any("landlock" in mechanism for mechanism in held):
        return None
    from corral.platforms.posix import stream_relay

    try:
        relay = stream_relay.relay_files(stdio)
    except OSError as error:
        raise StepFailed("streams", error) from error
    results.add(relay)
    return relay


def _clone(plan: Plan, results: Results, stdio: Stdio, relay: Relay | None) -> Child:
    ours, theirs = _open_pipes()
    made = next((step for step in plan.steps if isinstance(step, namespaces.Namespaces)), None)
    try:
        pid, pidfd = abi.clone(made.flags() if made else 0)
    except OSError as error:
        raise StepFailed(made.name if made else "clone", error) from error
    if pid == 0:
        ours.close()
        _become_init(plan, results, stdio, theirs)
    theirs.close()
    results.get(init.InitDescriptors).release()
    if relay is not None:
        relay.started()
    child = Child(pid, pidfd, ours, results, has_pid_namespace=bool(made))
    results.add(init.InitProcess(pid=pid))
    try:
        steps.apply(plan.steps, "after_clone", results)
    except StepFailed:
        child.kill()
        child.reap()
        raise
    child.signal(0)
    return child


def _open_pipes() -> tuple[init.Pipes, init.Pipes]:
    """Return the supervisor's ends and init's ends."""
    control_read, control_write = os.pipe()
    exec_read, exec_write = os.pipe()
    status_read, status_write = os.pipe()
    return (
        init.Pipes(control=control_write, status=status_read, exec_result=exec_read),
        init.Pipes(control=control_read, status=status_write, exec_result=exec_write),
    )


def _become_init(plan: Plan, results: Results, stdio: Stdio, pipes: init.Pipes) -> NoReturn:
    """Run in the new PID 1, or the subreaper. Never return into the supervisor's code."""
    try:
        init.follow_supervisor()
        run_init = _choose_init(plan)
        if os.read(pipes.control, 1) != b"\0":  # the id maps are written, or the supervisor is gone
            os._exit(1)
        os.setsid()
        abi.reset_signals()  # otherwise the target could call a handler of Python's
        _check_namespaces(plan, results)
        steps.apply(plan.steps, "init", results)
        init.follow_supervisor()  # the change of ids has cleared it
        start_read, start_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(start_write)
            _become_target(plan, results, stdio, start_read, pipes.exec_result)
        os.close(start_read)
        run_init(pid, replace(pipes, start=start_write))
    except BaseException as error:  # noqa: BLE001 - a bug here must not let anything run
        target.tell(pipes.exec_result, error, "init")


def _choose_init(plan: Plan) -> RunInit:
    """Return what init does once the target exists. Import it now: later no file can be read."""
    view = next((step for step in plan.steps if isinstance(step, root_filesystem.View)), None)
    if view is None:
        from corral.platforms.linux import subreaper

        return subreaper.run_subreaper
    return lambda pid, pipes: init.run_init(pid, pipes, space=view.private[0])


def _check_namespaces(plan: Plan, results: Results) -> None:
    """Refuse to go on in a namespace of the host, whose settings the next steps would change."""
    for step in plan.steps:
        if isinstance(step, namespaces.Namespaces):
            steps.attempt(step, step.verify, results)


def _become_target(
    plan: Plan, results: Results, stdio: Stdio, start: int, exec_pipe: int
) -> NoReturn:
    try:
        start, exec_pipe = _arrange_descriptors(stdio, start, exec_pipe)
        os.setsid()
        os.umask(UMASK)
        abi.sigprocmask(abi.SIG_SETMASK, ())
        os.chdir(plan.program.cwd or "/")
        steps.apply(plan.steps, "target", results)
        steps.verify(plan.steps, results)
        # Until here init was locking itself down, on another processor if there is one.
        if os.read(start, 1) != b"\0":
            os._exit(1)  # init is gone
        os.write(exec_pipe, EXECUTED)
        _exec(plan, results)
    except BaseException as error:  # noqa: BLE001 - a bug here must not let anything run
        target.tell(exec_pipe, error, "target")


def _exec(plan: Plan, results: Results) -> NoReturn:
    environment = [f"{name}={value}" for name, value in plan.environment]
    cookie = results.find(seccomp.ExecCookie)
    words = cookie.words if cookie else (0, 0, 0)
    try:
        target.check_same(plan.program)
        abi.execve(plan.program.path, plan.program.argv, environment, words)
    except OSError as error:
        raise StepFailed("exec", OSError(error.errno, error.strerror, plan.program.path)) from error
    raise StepFailed("exec", "returned")


def _arrange_descriptors(stdio: Stdio, *pipes: int) -> list[int]:
    """Put the three streams on 0 to 2 and close everything else on exec; return the moved pipes."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 16) for fd in (*stdio, *pipes)]
    for number, fd in enumerate(high[:3]):
        os.dup2(fd, number)
    abi.close_range(3, 0xFFFFFFFF, abi.CLOSE_RANGE_CLOEXEC)
    return high[3:]
