"""How a Linux target comes into the world: supervisor -> init (PID 1 of the sandbox) -> target.

Three pipes connect them, all close-on-exec. `go` carries signal numbers from the supervisor to
init, and its end of file means that the supervisor is gone. `born` carries a failed step out, or
one mark just before exec: its end of file after the mark is a successful exec, and without it a
death on the way.
`say` carries the target's wait status. The target gets none of them.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.abi.signal_numbers import SIGKILL
from corral.platforms import steps
from corral.platforms.linux import init
from corral.platforms.linux import init as keeper
from corral.platforms.linux.mechanisms import cgroup, namespaces, root_filesystem
from corral.platforms.posix import target
from corral.platforms.posix.watch import Reaped
from corral.platforms.steps import EXECUTED, Scene, StepFailed
from corral.record import replace

if sys.platform != "win32":
    # Here and not at the point of use: inside, the standard library is out of sight.
    import fcntl

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn, Protocol

    from corral.denials.records import Denials
    from corral.plan.model import Plan
    from corral.platforms.linux.usage import Usage
    from corral.platforms.posix.watch import Ways

    Stdio = tuple[int, int, int]

    class Guard(Protocol):
        def __call__(self, target: int, pipes: keeper.Pipes, /) -> NoReturn: ...


UMASK = 0o022


class Child:
    """The supervisor's hold on one sandbox."""

    def __init__(
        self, pid: int, pidfd: int, scene: Scene, *, go: int, born: int, say: int, pid_1: bool
    ) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.born = born
        self.say = say
        self._go = go
        self._scene = scene  # steps beside init have yet to add to it
        self._lists: tuple[int, ...] = ()
        self._pid_1 = pid_1

    def signal(self, number: int) -> None:
        """To every process of the target; init passes it on."""
        try:
            os.write(self._go, bytes([number]))
        except BrokenPipeError:
            pass  # init is gone, and everything with it

    def kill(self) -> None:
        """PID 1 dies and the kernel kills the rest of its namespace before it can be waited for.

        A guardian has to do that itself, so it is told to instead.
        """
        if not self._pid_1:
            self.signal(SIGKILL)
            return
        try:
            abi.pidfd_send_signal(self.pidfd, SIGKILL)
        except ProcessLookupError:
            pass

    def target(self) -> int:
        """The target's pid on the host: the only child of init that was there before it ran."""
        try:
            with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as file:
                return int(file.read().split()[0])
        except (OSError, IndexError):
            return 0

    def ways(self, plan: Plan, denials: Denials | None) -> Ways:
        from corral.platforms.linux import network_services as ways

        return ways.ways(plan, self._scene, denials)

    def measure(self, *, exact: bool = False) -> Usage:
        from corral.platforms.linux import usage

        return usage.measure(self.pid, exact=exact, objects=self._objects())

    def _objects(self) -> int:
        """Bytes of System V objects; 0 where nobody has to count them."""
        if not self._scene.windows:
            return 0
        from corral.platforms.linux.mechanisms import sysv_ipc

        if not self._lists:
            self._lists = sysv_ipc.receive(self._scene.windows[0])
        return sysv_ipc.count(self._lists) if self._lists else 0

    def reap(self) -> Reaped:
        """Wait for init: the target's wait status if it was told, and what the whole tree used."""
        rusage = os.wait4(self.pid, 0)[2]
        said = os.read(self.say, 5)
        for fd in (
            self.pidfd,
            self._go,
            self.say,
            self.born,
            *self._lists,
            *self._scene.windows[:1],
        ):
            os.close(fd)
        reaped = Reaped(
            status=int.from_bytes(said[:4], "little") if len(said) >= 4 else None,
            cpu=rusage.ru_utime + rusage.ru_stime,
            memory=rusage.ru_maxrss * 1024,
            hit=("disk",) if said[4:] == b"\x01" else (),
        )
        if self._scene.directory:
            _remove_directory(self._scene.directory)
        return self._accounted(reaped) if self._scene.cgroup else reaped

    def _accounted(self, reaped: Reaped) -> Reaped:
        counted = cgroup.account(self._scene.cgroup)
        cgroup.remove(self._scene.cgroup)
        return replace(
            reaped,
            hit=(*counted.hit, *reaped.hit),
            cpu=max(counted.cpu_usec / 1e6, reaped.cpu),
            memory=counted.memory_peak or reaped.memory,
            tasks=max(0, counted.pids_peak - 1),
        )


def birth(plan: Plan, stdio: Stdio) -> Child:
    scene = Scene()
    try:
        steps.apply(plan.steps, "supervisor", scene)
        steps.apply(plan.steps, "birth", scene)
        return _conceive(plan, scene, stdio)
    except StepFailed:
        _forget(scene)
        raise


def _forget(scene: Scene) -> None:
    for fd in scene.inlets.values():
        os.close(fd)
    if scene.cgroup:
        cgroup.remove(scene.cgroup)
    if scene.directory:
        _remove_directory(scene.directory)


def _remove_directory(path: str) -> None:
    from corral.platforms.posix import work_directory

    work_directory.remove(path)


def _conceive(plan: Plan, scene: Scene, stdio: Stdio) -> Child:
    go_read, go_write = os.pipe()
    born_read, born_write = os.pipe()
    say_read, say_write = os.pipe()
    walls = next((step for step in plan.steps if isinstance(step, namespaces.Namespaces)), None)
    pid, pidfd = _clone(walls)
    if pid == 0:
        for fd in (go_write, born_read, say_read):
            os.close(fd)
        guard = _pid_1(plan) if walls else _guardian()
        _become_init(plan, scene, stdio, guard, go=go_read, born=born_write, say=say_write)
    for fd in (
        go_read,
        born_write,
        say_write,
        *scene.doors[1:],
        *scene.windows[1:],
        *scene.trees.values(),
    ):
        os.close(fd)
    child = Child(pid, pidfd, scene, go=go_write, born=born_read, say=say_read, pid_1=bool(walls))
    scene.pid = pid
    try:
        steps.apply(plan.steps, "beside", scene)
    except StepFailed:
        child.kill()
        child.reap()
        raise
    child.signal(0)
    return child


def _clone(step: namespaces.Namespaces | None) -> tuple[int, int]:
    try:
        return abi.clone(step.flags() if step else 0)
    except OSError as error:
        raise StepFailed("clone" if step is None else steps.name(step), error) from error


def _pid_1(plan: Plan) -> Guard:
    view = next(step for step in plan.steps if isinstance(step, root_filesystem.View))

    def guard(target: int, pipes: keeper.Pipes, /) -> NoReturn:
        init.guard(target, pipes, space=view.private[0])

    return guard


def _guardian() -> Guard:
    from corral.platforms.linux import subreaper

    return subreaper.guard


def _become_init(
    plan: Plan, scene: Scene, stdio: Stdio, guard: Guard, *, go: int, born: int, say: int
) -> NoReturn:
    """In the new PID 1, or the guardian. Whatever happens here, this never returns into the
    supervisor's code.
    """
    try:
        init.follow_supervisor()
        if os.read(go, 1) != b"\0":  # the id maps are written, or the supervisor is gone
            os._exit(1)
        os.setsid()
        abi.reset_signals()  # a handler of Python's would be the target's to call
        steps.apply(plan.steps, "init", scene)
        init.follow_supervisor()  # the change of ids has cleared it
        gate_read, gate_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(gate_write)
            _become_target(plan, scene, stdio, gate=gate_read, born=born)
        os.close(gate_read)
        guard(pid, keeper.Pipes(go=go, say=say, born=born, gate=gate_write))
    except BaseException as error:  # noqa: BLE001 - a bug here must not let anything run
        target.tell(born, error, "init")


def _become_target(plan: Plan, scene: Scene, stdio: Stdio, *, gate: int, born: int) -> NoReturn:
    try:
        gate, born = _descriptors(stdio, gate, born)
        os.setsid()
        os.umask(UMASK)
        abi.sigprocmask(abi.SIG_SETMASK, ())
        os.chdir(plan.program.cwd or "/")
        steps.apply(plan.steps, "target", scene)
        steps.verify(plan.steps, scene)
        # Until here init was locking itself up, on another processor if there is one.
        if os.read(gate, 1) != b"\0":
            os._exit(1)  # init is gone
        os.write(born, EXECUTED)
        _exec(plan, scene)
    except BaseException as error:  # noqa: BLE001 - a bug here must not let anything run
        target.tell(born, error, "target")


def _exec(plan: Plan, scene: Scene) -> NoReturn:
    environment = [f"{name}={value}" for name, value in plan.environment]
    try:
        target.check_same(plan.program)
        abi.execve(plan.program.path, plan.program.argv, environment, scene.cookie)
    except OSError as error:
        raise StepFailed("exec", OSError(error.errno, error.strerror, plan.program.path)) from error
    raise StepFailed("exec", "returned")


def _descriptors(stdio: Stdio, gate: int, born: int) -> tuple[int, int]:
    """The three streams on 0 to 2, everything else closed on exec; the two pipes where they are
    now.
    """
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 16) for fd in (*stdio, gate, born)]
    for number, fd in enumerate(high[:3]):
        os.dup2(fd, number)
    abi.close_range(3, 0xFFFFFFFF, abi.CLOSE_RANGE_CLOEXEC)
    return high[3], high[4]
