"""What this Mac can do, by doing it: each probe sees the denial and its control in a disposable
child.

Seatbelt is proven by a twin: made by the very steps and code that a run uses, once with a trial in
the target's place and once for each runtime, which has to start and end well. A profile that holds
but that nothing starts under is of no use, so that is no proof.
"""

from __future__ import annotations

import _socket
import os
import sys

from corral.abi.signal_numbers import SIGKILL
from corral.plan.host import Finding
from corral.plan.model import Held, Plan
from corral.platforms.macos import options, spawn, tier_seatbelt
from corral.platforms.macos.mechanisms import loopback_proxy, seatbelt
from corral.platforms.macos.probes import proxy_trial
from corral.platforms.macos.process_tree import Tree
from corral.platforms.posix import disposable, rlimits
from corral.platforms.steps import StepFailed, name, read_born
from corral.policy.model import Policy
from corral.programs import resolve as command
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corral.plan.host import Status
    from corral.plan.model import Place
    from corral.platforms.macos.process_table import Table
    from corral.platforms.steps import Scene
    from corral.programs.model import Program

MEMORY = 32 << 20
HELD = Held(
    control="filesystem", asked="", stated=False, mechanism=options.SEATBELT, status="verified"
)
OPENED = Held(
    control="network",
    asked="",
    stated=False,
    mechanism=f"{options.SEATBELT} + {options.DOOR}",
    status="verified",
)
SEATBELT_HINT = "a Linux VM has walls that hold"


@record
class Trial:
    """Takes the target's place in the twin: tries, tells `fd` what it saw, and fails."""

    fd: int
    marker: str
    other: int
    place: Place = "target"

    def describe(self) -> str:
        return "try the walls from inside"


def apply(step: Trial, scene: Scene) -> None:
    """What Seatbelt's own `verify` does not try."""
    own = f"{scene.directory}/home/own"
    os.close(os.open(own, os.O_WRONLY | os.O_CREAT, 0o600))
    os.unlink(own)
    saw = [
        f"reading={_denied(lambda: os.close(os.open(step.marker, os.O_RDONLY)))}",
        f"writing={_denied(lambda: os.truncate(step.marker, 0))}",
        f"forking={disposable.refused(_fork_once)}",  # by the wall, or by RLIMIT_NPROC before it
        f"signalling={_denied(lambda: os.kill(step.other, 0))}",
    ]
    os.write(step.fd, ", ".join(saw).encode())
    raise OSError(0, "the trial is over")


def _denied(attempt: Callable[[], object]) -> str:
    return disposable.refused(attempt, by=PermissionError)


def probe(table: Table, node: str) -> tuple[Finding, ...]:
    return (
        _finding("seatbelt", lambda: _seatbelt(table, node), SEATBELT_HINT),
        _finding("door", lambda: _door(table), ""),
        _finding("rlimits", rlimits.probe, ""),
        _finding("nproc", _nproc, "start corral as an ordinary user"),
        _finding("watcher", lambda: _watcher(table), ""),
        _finding("sampling", lambda: _sampling(table), ""),
        _finding("jetsam", _jetsam, ""),
    )


def _finding(capability: str, attempt: Callable[[], str], hint: str) -> Finding:
    held, words = disposable.observe(attempt)
    status: Status = "proven" if held else "absent"
    return Finding(capability=capability, status=status, evidence=words, hint="" if held else hint)


def _seatbelt(table: Table, node: str) -> str:
    python = sys.executable
    saw = _tried(table, python)
    started = [_started(table, (python, "-c", "import ctypes, json, socket, ssl"))]
    started += [_started(table, (node, "-e", "require('fs').realpathSync('.')"))] if node else []
    without = "" if node else "; there is no node to try"
    return f"denied inside: {saw}, allowed outside; started: {', '.join(started)}{without}"


def _tried(table: Table, python: str) -> str:
    """Outside, the same acts succeed (the control)."""
    import tempfile

    with tempfile.NamedTemporaryFile() as marker:
        os.close(os.open(marker.name, os.O_RDONLY))
        os.truncate(marker.name, 0)
        _fork_once()
        os.kill(os.getppid(), 0)
        path, other = os.path.realpath(marker.name), os.getppid()
        return _told(table, lambda fd: _twin((python,), Trial(fd=fd, marker=path, other=other)))


def _door(table: Table) -> str:
    """Outside, the port beside the door's is reached as well (the control)."""
    beside = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    beside.bind((loopback_proxy.LOOPBACK, 0))
    beside.listen(2)
    port = int(beside.getsockname()[1])
    seatbelt.connect(port)
    argv, policy = (sys.executable,), Policy(allow=("example.com",))
    words = _told(
        table,
        lambda fd: _twin(
            argv, proxy_trial.Knock(fd=fd, port=port), policy=policy, held=(HELD, OPENED)
        ),
    )
    return f"denied inside: {words}, allowed outside; the door's own port is reached"


def _told(table: Table, made: Callable[[int], Plan]) -> str:
    """What a trial says that is the last step of a twin."""
    read, write = os.pipe()
    plan = made(write)
    child = spawn.birth(plan, (0, write, write), table)
    os.close(write)
    failed = _ended(child)[0]
    with open(read, "rb") as answer:
        words = answer.read().decode()
    if failed is None or failed.step != name(plan.steps[-1]) or not words:
        raise failed or StepFailed("trial", "ran something")
    return words


def _started(table: Table, argv: Sequence[str]) -> str:
    null = os.open(os.devnull, os.O_RDWR)
    child = spawn.birth(_twin(argv), (null, null, null), table)
    failed, status = _ended(child)
    os.close(null)
    if failed is not None:
        raise failed
    if status:
        raise RuntimeError(f"{argv[0]} does not start under the profile (wait status {status})")
    return os.path.basename(argv[0])


def _twin(
    argv: Sequence[str],
    *more: Trial | proxy_trial.Knock,
    policy: Policy = Policy(),  # noqa: B008 - records are frozen
    held: Sequence[Held] = (HELD,),
) -> Plan:
    """A run with corral's defaults and Seatbelt."""
    program = _resolved(argv)
    made = tier_seatbelt.compose(policy, program, held, home=os.path.expanduser("~"))
    return Plan(
        program=program,
        steps=(*made.steps, *more),
        controls=(),
        environment=(("PATH", ":".join(program.search)), *made.environment),
    )


def _resolved(argv: Sequence[str]) -> Program:
    home = os.path.realpath(os.path.expanduser("~"))
    return command.resolve(argv, environment=os.environ, cwd="/", home=home, subprocess=False)


def _ended(child: spawn.Child) -> tuple[StepFailed | None, int | None]:
    with open(child.born, "rb", closefd=False) as born:
        failed = read_born(born.read())
    os.read(child.pidfd, 1)
    return failed, child.reap().status


def _nproc() -> str:
    import resource

    _fork_once()
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    words = disposable.refused(_fork_once)
    return f"with RLIMIT_NPROC of 1 a fork is denied ({words}), without it is not"


def _fork_once() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _watcher(table: Table) -> str:
    """A daemon whose parent has ended and been reaped is found and killed."""
    hold_read, hold_write = os.pipe()
    ready_read, ready_write = os.pipe()
    root = os.fork()
    if root == 0:
        os.setsid()
        os.read(hold_read, 1)
        if os.fork() == 0:
            os.setsid()
            os.close(hold_write)
            os.write(ready_write, b"\0")
            os.read(hold_read, 1)
        os._exit(0)
    tree = Tree(table, root, table.unique(root), grouped=False)
    tree.walk()
    os.close(ready_write)
    os.write(hold_write, b"\0")
    os.read(ready_read, 1)
    os.waitpid(root, 0)
    found = len(tree.walk())
    tree.kill()
    if found != 1 or os.read(ready_read, 1):
        raise RuntimeError(f"{found} processes were found where a daemon was")
    return "a daemon that left its session and lost its parent is found and killed"


def _sampling(table: Table) -> str:
    """A grandchild's memory is seen from outside, and is not before it has any."""
    go_read, go_write = os.pipe()
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_write)
        child = os.fork()
        if child == 0:
            os.write(ready_write, b"\0")
            os.read(go_read, 1)
            space = b"x" * MEMORY
            os.write(ready_write, space[:1])
            os.read(go_read, 1)
            os._exit(0)
        os.waitpid(child, 0)
        os._exit(0)
    tree = Tree(table, pid, table.unique(pid), grouped=False)
    os.read(ready_read, 1)
    before = tree.measure()
    os.write(go_write, b"\0")
    os.read(ready_read, 1)
    after = tree.measure()
    tree.kill()
    os.waitpid(pid, 0)
    if after.memory - before.memory < MEMORY // 2 or after.tasks != 2:
        raise RuntimeError(f"of {MEMORY} bytes in a grandchild {after.memory} were seen")
    return f"memory of a grandchild is seen ({before.memory >> 20}, then {after.memory >> 20} MiB)"


def _jetsam() -> str:
    """A process that takes more than its limit is killed, and ends well without one."""
    real = os.path.realpath(sys.executable)
    python = tier_seatbelt.framework_bundle(real) or real
    if _allocated(python, megabytes=0) != 0:
        raise RuntimeError(f"{python} does not end well without a limit")
    status = _allocated(python, megabytes=64)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != SIGKILL:
        raise RuntimeError(f"256 MiB under a limit of 64 end with wait status {status}")
    return "a process is killed beyond a limit of 64 MiB, and not without one"


def _allocated(python: str, *, megabytes: int) -> int:
    from corral.abi import darwin_spawn

    pid = os.fork()
    if pid == 0:
        try:
            argv = (python, "-ISc", "x = b'x'; y = x * (256 << 20)")
            darwin_spawn.exec_in_place(python, argv, (), megabytes=megabytes)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]
