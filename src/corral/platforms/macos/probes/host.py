"""Probe this Mac: each probe sees the denial and its control in a disposable child.

Seatbelt is proven by twins of a run, made by the same steps and code. One twin has a trial as its
last step, and one for each runtime has to start and exit with 0. A profile under which nothing
starts is useless, so it does not count as proven.
"""

from __future__ import annotations

import _socket
import os
import sys

from corral.abi.signal_numbers import SIGKILL
from corral.plan.model import Held, Plan
from corral.platforms.macos import options, process_tree, spawn, tier_seatbelt
from corral.platforms.macos.mechanisms import loopback_proxy, seatbelt
from corral.platforms.posix import disposable, rlimits, run_directories
from corral.platforms.steps import StepFailed, parse_exec_result, unverified
from corral.policy.model import Policy
from corral.programs.resolve import resolve
from corral.record import record, replace

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corral.plan.host import Finding
    from corral.plan.model import Results, Stage, Step
    from corral.platforms.macos.process_table import ProcessTable

MEMORY = 32 << 20
SEATBELT = Held(
    control="filesystem", asked="", stated=False, mechanism=options.SEATBELT, status="verified"
)
PROXY = replace(SEATBELT, control="network", mechanism=f"{options.SEATBELT} + {options.PROXY}")
LABELS = (
    ("seatbelt", "Seatbelt", "supported"),
    ("door", "Network allowlist, by a proxy", "supported"),
    ("rlimits", "Rlimits", "supported"),
    ("nproc", "No second process by rlimit", "supported"),
    ("watcher", "Tree kill", "supported"),
    ("sampling", "Sampling", "supported"),
    ("jetsam", "Memory limit of one process", "supported"),
)
"""The doctor's words for each capability that `probe` finds."""


def probe(table: ProcessTable, node: str) -> tuple[Finding, ...]:
    return (
        disposable.probe(
            "seatbelt", lambda: _seatbelt(table, node), "a Linux VM has walls that hold"
        ),
        disposable.probe("door", lambda: _loopback_proxy(table)),
        disposable.probe("rlimits", rlimits.probe),
        disposable.probe("nproc", _nproc, "start corral as an ordinary user"),
        disposable.probe("watcher", lambda: _watcher(table)),
        disposable.probe("sampling", lambda: _sampling(table)),
        disposable.probe("jetsam", _jetsam),
    )


@record
class Trial:
    """Try more than Seatbelt's `verify`, write to `fd` what was seen, and fail before the exec."""

    name = "trial"
    fd: int
    marker: str
    other: int
    stage: Stage = "target"
    verify = unverified

    def describe(self) -> str:
        return "try the walls from inside"

    def apply(self, results: Results) -> None:
        own = f"{results.get(run_directories.PrivateDirectory).path}/home/own"
        os.close(os.open(own, os.O_WRONLY | os.O_CREAT, 0o600))
        os.unlink(own)
        saw = [
            f"reading={_denied(lambda: os.close(os.open(self.marker, os.O_RDONLY)))}",
            f"writing={_denied(lambda: os.truncate(self.marker, 0))}",
            # By the wall, or by RLIMIT_NPROC before it.
            f"forking={disposable.refused(disposable.fork_once)}",
            f"signalling={_denied(lambda: os.kill(self.other, 0))}",
        ]
        os.write(self.fd, ", ".join(saw).encode())
        raise OSError(0, "the trial is over")


@record
class ProxyTrial:
    """Reach the proxy's port but not `port`, where another socket listens; then fail as `Trial`."""

    name = "proxy_trial"
    fd: int
    port: int
    stage: Stage = "target"
    verify = unverified

    def describe(self) -> str:
        return "try the proxy's port and another one from inside"

    def apply(self, results: Results) -> None:
        words = _denied(lambda: seatbelt.connect(self.port))
        seatbelt.connect(results.get(loopback_proxy.ProxyPort).number)
        os.write(self.fd, f"beside={words}".encode())
        raise OSError(0, "the trial is over")


def _denied(attempt: Callable[[], object]) -> str:
    return disposable.refused(attempt, by=PermissionError)


def _seatbelt(table: ProcessTable, node: str) -> str:
    python = sys.executable
    saw = _try_walls(table, python)
    started = [_start(table, (python, "-c", "import ctypes, json, socket, ssl"))]
    started += [_start(table, (node, "-e", "require('fs').realpathSync('.')"))] if node else []
    without = "" if node else "; there is no node to try"
    return f"denied inside: {saw}, allowed outside; started: {', '.join(started)}{without}"


def _try_walls(table: ProcessTable, python: str) -> str:
    """Outside, the same acts succeed (the control)."""
    import tempfile

    with tempfile.NamedTemporaryFile() as marker:
        os.close(os.open(marker.name, os.O_RDONLY))
        os.truncate(marker.name, 0)
        disposable.fork_once()
        os.kill(os.getppid(), 0)
        path, other = os.path.realpath(marker.name), os.getppid()
        return _run_trial(
            table, lambda fd: _twin((python,), Trial(fd=fd, marker=path, other=other))
        )


def _loopback_proxy(table: ProcessTable) -> str:
    """Outside, the port beside the proxy's is reached as well (the control)."""
    beside = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    beside.bind((loopback_proxy.LOOPBACK, 0))
    beside.listen(2)
    port = int(beside.getsockname()[1])
    seatbelt.connect(port)
    argv, policy = (sys.executable,), Policy(allow=("example.com",))
    words = _run_trial(
        table,
        lambda fd: _twin(
            argv, ProxyTrial(fd=fd, port=port), policy=policy, controls=(SEATBELT, PROXY)
        ),
    )
    return f"denied inside: {words}, allowed outside; the proxy's own port is reached"


def _run_trial(table: ProcessTable, make_twin: Callable[[int], Plan]) -> str:
    """Return what the trial writes that is the last step of a twin."""
    read, write = os.pipe()
    plan = make_twin(write)
    child = spawn.spawn(plan, (0, write, write), table)
    os.close(write)
    failed, _ = _wait(child)
    with open(read, "rb") as answer:
        words = answer.read().decode()
    if failed is None or failed.step != plan.steps[-1].name or not words:
        raise failed or StepFailed("trial", "ran something")
    return words


def _start(table: ProcessTable, argv: Sequence[str]) -> str:
    null = os.open(os.devnull, os.O_RDWR)
    child = spawn.spawn(_twin(argv), (null, null, null), table)
    failed, status = _wait(child)
    os.close(null)
    if failed is not None:
        raise failed
    if status:
        raise RuntimeError(f"{argv[0]} does not start under the profile (wait status {status})")
    return os.path.basename(argv[0])


def _twin(
    argv: Sequence[str],
    *more: Step,
    policy: Policy = Policy(),  # noqa: B008 - records are frozen
    controls: Sequence[Held] = (SEATBELT,),
) -> Plan:
    """Return the plan of a run with corral's defaults and Seatbelt."""
    home = os.path.realpath(os.path.expanduser("~"))
    program = resolve(argv, environment=os.environ, cwd="/", home=home, subprocess=False)
    made = tier_seatbelt.compose(policy, program, controls, home=os.path.expanduser("~"))
    return Plan(
        program=program,
        steps=(*made.steps, *more),
        controls=(),
        environment=(("PATH", ":".join(program.search)), *made.environment),
    )


def _wait(child: spawn.Child) -> tuple[StepFailed | None, int | None]:
    """Return the step that failed, if one did, and the wait status."""
    with open(child.exec_pipe, "rb", closefd=False) as pipe:
        failed = parse_exec_result(pipe.read())
    os.read(child.pidfd, 1)
    return failed, child.reap().status


def _nproc() -> str:
    import resource

    disposable.fork_once()
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    words = disposable.refused(disposable.fork_once)
    return f"with RLIMIT_NPROC of 1 a fork is denied ({words}), without it is not"


def _watcher(table: ProcessTable) -> str:
    """Find and kill a daemon whose parent has ended and been reaped."""
    wait_read, wait_write = os.pipe()
    ready_read, ready_write = os.pipe()
    root = os.fork()
    if root == 0:
        os.setsid()
        os.read(wait_read, 1)
        if os.fork() == 0:
            os.setsid()
            os.close(wait_write)
            os.write(ready_write, b"\0")
            os.read(wait_read, 1)
        os._exit(0)
    tree = process_tree.Tree(table, root, table.unique_id(root), grouped=False)
    tree.walk()
    os.close(ready_write)
    os.write(wait_write, b"\0")
    os.read(ready_read, 1)
    os.waitpid(root, 0)
    found = len(tree.walk())
    tree.kill()
    if found != 1 or os.read(ready_read, 1):
        raise RuntimeError(f"{found} processes were found where a daemon was")
    return "a daemon that left its session and lost its parent is found and killed"


def _sampling(table: ProcessTable) -> str:
    """Measure a grandchild's memory from outside, before it has any and after."""
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
    tree = process_tree.Tree(table, pid, table.unique_id(pid), grouped=False)
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
    """Let a process allocate more than its limit, and the same without a limit."""
    real = os.path.realpath(sys.executable)
    python = tier_seatbelt.framework_bundle(real) or real
    if _allocate(python, megabytes=0) != 0:
        raise RuntimeError(f"{python} does not end well without a limit")
    status = _allocate(python, megabytes=64)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != SIGKILL:
        raise RuntimeError(f"256 MiB under a limit of 64 end with wait status {status}")
    return "a process is killed beyond a limit of 64 MiB, and not without one"


def _allocate(python: str, *, megabytes: int) -> int:
    """Return the wait status of a python that allocates 256 MiB."""
    from corral.abi import darwin_spawn

    pid = os.fork()
    if pid == 0:
        try:
            argv = (python, "-ISc", "x = b'x'; y = x * (256 << 20)")
            darwin_spawn.exec_in_place(python, argv, (), megabytes=megabytes)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]
