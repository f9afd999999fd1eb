"""Probe what this Mac enforces. Each probe runs in a disposable child.

Whenever an operation must be denied, the probe also checks that it succeeds without the mechanism.
Seatbelt is probed in two test runs with the steps of a real run. The first tries operations that
must be denied. The second starts a system program, to show that programs can start under the
profile. Each runtime, such as node, has its own finding. So if one runtime cannot start under the
profile, corral can still run servers of the other runtimes.
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
TRUE = "/usr/bin/true"
SEATBELT = Held(
    control="filesystem", asked="", stated=False, mechanism=options.SEATBELT, status="verified"
)
DISCLAIM = replace(SEATBELT, control="syscalls", mechanism=options.DISCLAIM)
PROXY = replace(SEATBELT, control="network", mechanism=f"{options.SEATBELT} + {options.PROXY}")
LABELS = (
    ("seatbelt", "Seatbelt", "supported"),
    ("starts python", "Python under Seatbelt", "starts"),
    ("starts node", "Node under Seatbelt", "starts"),
    ("disclaim", "Consents of the client", "not passed on"),
    ("marker", "Recognizing processes by their profile", "supported"),
    ("loopback_proxy", "Network allowlist, by a proxy", "supported"),
    ("rlimits", "Rlimits", "supported"),
    ("nproc", "No second process by rlimit", "supported"),
    ("watcher", "Tree kill", "supported"),
    ("sampling", "Sampling", "supported"),
    ("jetsam", "Memory limit of one process", "supported"),
)
"""The label in `doctor` for each capability that `probe` finds."""


def probe(table: ProcessTable, node: str) -> tuple[Finding, ...]:
    python = (sys.executable, "-c", "import ctypes, json, socket, ssl")
    script = (node, "-e", "require('fs').realpathSync('.')")
    hint = "the evidence says why; servers that need this runtime might fail to start"
    return (
        disposable.probe("seatbelt", lambda: _seatbelt(table), "use a Linux virtual machine"),
        disposable.probe("starts python", lambda: _start(table, python), hint),
        *([disposable.probe("starts node", lambda: _start(table, script), hint)] if node else []),
        disposable.probe("disclaim", lambda: _start(table, (TRUE,), controls=(SEATBELT, DISCLAIM))),
        disposable.probe("marker", lambda: _marker(table)),
        disposable.probe("loopback_proxy", lambda: _loopback_proxy(table)),
        disposable.probe("rlimits", rlimits.probe),
        disposable.probe("nproc", _nproc, "start corral as an ordinary user"),
        disposable.probe("watcher", lambda: _watcher(table)),
        disposable.probe("sampling", lambda: _sampling(table)),
        disposable.probe("jetsam", _jetsam),
    )


@record
class Trial:
    """A step that calls `attempt`, writes the returned text to `fd`, and then fails on purpose, so
    that no program is executed.
    """

    name = "trial"
    fd: int
    attempt: Callable[[Results], str]
    stage: Stage = "target"
    verify = unverified

    def describe(self) -> str:
        return "try the walls from inside"

    def apply(self, results: Results) -> None:
        os.write(self.fd, self.attempt(results).encode())
        raise OSError(0, "the trial is over")


def _denied(attempt: Callable[[], object]) -> str:
    return disposable.refused(attempt, by=PermissionError)


def _seatbelt(table: ProcessTable) -> str:
    saw, started = _try_walls(table), _start(table, (TRUE,))
    return f"denied inside: {saw}, allowed outside; {started}"


def _marker(table: ProcessTable) -> str:
    ready, go = os.pipe(), os.pipe()

    def wait(_results: Results) -> str:
        os.write(ready[1], b"\0")
        os.read(go[0], 1)
        return ""

    plan = _test_run((TRUE,), Trial(fd=ready[1], attempt=wait))
    child = spawn.spawn(plan, (0, ready[1], ready[1]), table)
    os.close(ready[1])
    reported = os.read(ready[0], 1)
    marker = seatbelt.find_marker(plan.steps)
    seen = [table.has_marker(pid, marker) for pid in (child.target(), os.getpid())]
    os.write(go[1], b"\0")
    _wait(child)
    if not reported or seen != [True, False]:
        raise RuntimeError(
            f"a process in the sandbox has the marker: {seen[0]} (must be True); a process outside "
            f"the sandbox has the marker: {seen[1]} (must be False)"
        )
    return "only a process under the profile is recognized by its marker"


def _try_walls(table: ProcessTable) -> str:
    import tempfile

    with tempfile.NamedTemporaryFile() as marker:
        os.close(os.open(marker.name, os.O_RDONLY))
        os.truncate(marker.name, 0)
        disposable.fork_once()
        path, other = os.path.realpath(marker.name), os.getppid()
        os.kill(other, 0)
        return _run_trial(table, lambda results: try_inside(results, path, other))


def try_inside(results: Results, marker: str, other: int) -> str:
    """Try operations that Seatbelt's `verify` does not try, and return what happened.

    `marker` is a file outside the sandbox, and `other` the pid of a process outside it.
    """
    own = f"{results.get(run_directories.PrivateDirectory).path}/home/own"
    os.close(os.open(own, os.O_WRONLY | os.O_CREAT, 0o600))
    os.unlink(own)
    saw = [
        f"reading={_denied(lambda: os.close(os.open(marker, os.O_RDONLY)))}",
        f"writing={_denied(lambda: os.truncate(marker, 0))}",
        # Here any OSError counts as a denial, because either Seatbelt or RLIMIT_NPROC may deny the
        # fork, with different errors.
        f"forking={disposable.refused(disposable.fork_once)}",
        f"signalling={_denied(lambda: os.kill(other, 0))}",
    ]
    return ", ".join(saw)


def _loopback_proxy(table: ProcessTable) -> str:
    beside = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    beside.bind((loopback_proxy.LOOPBACK, 0))
    beside.listen(2)
    port = int(beside.getsockname()[1])
    seatbelt.connect(port)

    def attempt(results: Results) -> str:
        words = _denied(lambda: seatbelt.connect(port))
        seatbelt.connect(results.get(loopback_proxy.ProxyPort).number)
        return f"beside={words}"

    policy, controls = Policy(allow=("example.com",)), (SEATBELT, PROXY)
    words = _run_trial(table, attempt, policy=policy, controls=controls)
    return f"denied inside: {words}, allowed outside; the proxy's own port is reached"


def _run_trial(
    table: ProcessTable,
    attempt: Callable[[Results], str],
    *,
    policy: Policy = Policy(),  # noqa: B008 - records are frozen
    controls: Sequence[Held] = (SEATBELT,),
) -> str:
    read, write = os.pipe()
    plan = _test_run((TRUE,), Trial(fd=write, attempt=attempt), policy=policy, controls=controls)
    child = spawn.spawn(plan, (0, write, write), table)
    os.close(write)
    failed, _ = _wait(child)
    with open(read, "rb") as answer:
        words = answer.read().decode()
    if failed is None or failed.step != Trial.name or not words:
        raise failed or StepFailed(
            "trial", "the program started, although the trial should have failed first"
        )
    return words


def _start(
    table: ProcessTable, argv: Sequence[str], *, controls: Sequence[Held] = (SEATBELT,)
) -> str:
    null = os.open(os.devnull, os.O_RDWR)
    child = spawn.spawn(_test_run(argv, controls=controls), (null, null, null), table)
    failed, status = _wait(child)
    os.close(null)
    if failed is not None:
        raise failed
    if status:
        raise RuntimeError(f"{argv[0]} does not start under the profile (wait status {status})")
    return f"{argv[0]} starts under the profile"


def _test_run(
    argv: Sequence[str],
    *more: Step,
    policy: Policy = Policy(),  # noqa: B008 - records are frozen
    controls: Sequence[Held] = (SEATBELT,),
) -> Plan:
    home = os.path.realpath(os.path.expanduser("~"))
    program = resolve(argv, environment=os.environ, cwd="/", home=home, subprocess=False)
    made = tier_seatbelt.compose(policy, program, controls, home=os.path.expanduser("~"))
    return Plan(
        program=replace(program, cwd=made.home),
        steps=(*made.steps, *more),
        controls=(),
        environment=(("PATH", ":".join(program.search)), *made.environment),
    )


def _wait(child: spawn.Child) -> tuple[StepFailed | None, int | None]:
    """Wait until the tree has ended. Return the failed step, if any, and the wait status."""
    with open(child.exec_pipe, "rb", closefd=False) as pipe:
        failed = parse_exec_result(pipe.read())
    os.read(child.pidfd, 1)
    return failed, child.reap().status


def _nproc() -> str:
    import resource

    disposable.fork_once()
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    words = disposable.refused(disposable.fork_once)
    return f"a fork is denied with RLIMIT_NPROC of 1 ({words}), but not without it"


def _watcher(table: ProcessTable) -> str:
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
        raise RuntimeError(f"expected to find one daemon, but found {found} processes")
    return "a daemon that left its session and lost its parent is found and killed"


def _sampling(table: ProcessTable) -> str:
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
        raise RuntimeError(
            f"a grandchild allocated {MEMORY} bytes, but the measured memory went from "
            f"{before.memory} to {after.memory} bytes, with {after.tasks} tasks"
        )
    grew = f"from {before.memory >> 20} to {after.memory >> 20} MiB"
    return f"the measured memory grows when a grandchild allocates memory ({grew})"


def _jetsam() -> str:
    real = os.path.realpath(sys.executable)
    python = next(iter(tier_seatbelt.framework_images(real)), real)
    if _allocate(python, megabytes=0) != 0:
        raise RuntimeError(f"{python} fails even without a limit")
    status = _allocate(python, megabytes=64)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != SIGKILL:
        raise RuntimeError(
            "a process that allocates 256 MiB under a limit of 64 MiB was not killed (wait status "
            f"{status})"
        )
    return "a process that exceeds a limit of 64 MiB is killed, but not without the limit"


def _allocate(python: str, *, megabytes: int) -> int:
    """Return the wait status of a Python process that allocates 256 MiB under a memory limit of
    `megabytes`, where 0 means no limit.
    """
    from corral.abi import darwin_spawn

    pid = os.fork()
    if pid == 0:
        try:
            argv = (python, "-ISc", "x = b'x'; y = x * (256 << 20)")
            darwin_spawn.exec_in_place(python, argv, (), megabytes=megabytes)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]
