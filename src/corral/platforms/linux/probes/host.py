"""What this Linux can do, by doing it: each probe sees the denial and its control in a disposable
child.

The namespaces are proven by a twin: a sandbox made by the very steps and code that a run uses, in
which a trial takes the target's place.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.plan.host import Finding
from corral.plan.model import Plan
from corral.platforms.linux import host_files, spawn, tier_namespaces, usage
from corral.platforms.linux.mechanisms import seccomp, seccomp_rules, user_ids
from corral.platforms.linux.probes import cgroup, landlock, network
from corral.platforms.posix import disposable, rlimits
from corral.platforms.steps import StepFailed, read_born
from corral.policy.model import Policy
from corral.programs.model import Program
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.plan.host import Status
    from corral.plan.model import Place
    from corral.platforms.steps import Scene

USER_NAMESPACE_HINT = (
    "allow unprivileged user namespaces (sysctl user.max_user_namespaces, "
    "kernel.apparmor_restrict_unprivileged_userns), or run outside the container"
)


@record
class Trial:
    """Takes the target's place in the twin: tries, tells `fd` what it saw, and ends."""

    fd: int
    marker: str
    port: int
    host_pid: int
    place: Place = "target"

    def describe(self) -> str:
        return "try the walls from inside"


def apply(step: Trial, _scene: Scene) -> None:
    saw = [
        f"filesystem={disposable.refused(lambda: os.close(os.open(step.marker, os.O_RDONLY)))}",
        f"process={disposable.refused(lambda: os.listdir(f'/proc/{step.host_pid}'))}",
        f"signal={disposable.refused(lambda: os.kill(step.host_pid, 0))}",
        f"network={disposable.refused(lambda: network.connect(step.port))}",
    ]
    os.write(step.fd, "\n".join(saw).encode())


def probe() -> tuple[Finding, ...]:
    twin = _twin()
    return (
        *twin,
        _finding(
            "landlock",
            landlock.denies,
            "a kernel with Landlock (CONFIG_SECURITY_LANDLOCK, lsm=)",
        ),
        _finding(
            "landlock_wall",
            landlock.holds_truncation,
            "Linux 6.2 (Landlock that holds truncation)",
        ),
        _finding(
            "landlock_scope",
            landlock.scopes_signals,
            "Linux 6.12 (Landlock that scopes signals)",
        ),
        _finding("guardian", _guardian, ""),
        _finding("seccomp", _seccomp, "a kernel with CONFIG_SECCOMP_FILTER"),
        _finding("exec_cookie", _exec_cookie, "a kernel with CONFIG_SECCOMP_FILTER"),
        _finding("gateway", network.gateway, "a kernel with network namespaces and local routes"),
        _finding(
            "inward",
            network.inward,
            "a kernel with network namespaces that their owner may join",
        ),
        _finding("rlimits", rlimits.probe, ""),
        _finding("nproc", _nproc, "Linux 5.14 counts processes per user namespace"),
        _finding("sampling", _sampling, "a kernel with CONFIG_PROC_CHILDREN"),
        *cgroup.probe(),
    )


def _finding(capability: str, attempt: Callable[[], str], hint: str) -> Finding:
    held, words = disposable.observe(attempt)
    status: Status = "proven" if held else "absent"
    return Finding(capability=capability, status=status, evidence=words, hint="" if held else hint)


def _twin() -> tuple[Finding, ...]:
    names = ("user_namespaces", "mount_namespace", "pid_namespace", "network_namespace")
    held, words = disposable.observe(_in_twin)
    if held:
        saw = dict(line.split("=", 1) for line in words.split("\n"))
        texts = (
            f"a sandbox was made by uid {os.geteuid()}",
            f"a host file is out of reach ({saw['filesystem']}), readable outside",
            f"a host process is out of sight ({saw['process']}, {saw['signal']}), seen outside",
            f"a host port is out of reach ({saw['network']}), reached outside",
        )
        return tuple(
            Finding(capability=name, status="proven", evidence=text)
            for name, text in zip(names, texts, strict=True)
        )
    alone, why = disposable.observe(_user_namespace)
    user = Finding(
        capability=names[0],
        status="proven" if alone else "absent",
        evidence="a user namespace was made and mapped" if alone else why,
        hint="" if alone else USER_NAMESPACE_HINT,
    )
    rest = [
        Finding(capability=name, status="absent", evidence=words, hint=USER_NAMESPACE_HINT)
        for name in names[1:]
    ]
    return (user, *rest)


def _in_twin() -> str:
    """Make a sandbox as `run` would and try it; outside, the same acts succeed (the control)."""
    import tempfile

    read, write = os.pipe()
    port, listener = network.listen()
    with tempfile.NamedTemporaryFile() as marker:
        os.close(os.open(marker.name, os.O_RDONLY))
        os.listdir(f"/proc/{os.getpid()}")
        os.kill(os.getpid(), 0)
        network.connect(port)
        program = Program(path="/", argv=("trial",))
        home = os.path.dirname(marker.name)
        seen = host_files.survey(Policy(), program, home=home)
        steps = tier_namespaces.compose(Policy(), program, seen, ())
        trial = Trial(fd=write, marker=marker.name, port=port, host_pid=os.getpid())
        # A descriptor for the answer must outlive the closing of all others until the trial is
        # over.
        plan = Plan(program=program, steps=(*steps, trial), controls=(), environment=())
        child = spawn.birth(plan, (write, write, write))
        os.close(write)
        with open(child.born, "rb", closefd=False) as born:
            failed = read_born(born.read())
        child.kill()
        child.reap()
    os.close(listener)
    with open(read, "rb") as answer:
        words = answer.read().decode()
    # The trial's place ends in an exec of a directory, which cannot succeed.
    if failed is None or failed.step != "exec":
        raise failed or StepFailed("trial", "ran something")
    return words


def _user_namespace() -> str:
    pid, pidfd = abi.clone(abi.CLONE_NEWUSER)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(pidfd)
    return ""


def _guardian() -> str:
    """An orphan that left its session comes back to the subreaper, and is seen to die."""
    abi.prctl(abi.PR_SET_CHILD_SUBREAPER, 1)
    ready_read, ready_write = os.pipe()
    hold_read, hold_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(hold_write)
        if os.fork() == 0:
            os.setsid()
            os.write(ready_write, b"\0")
            os.read(hold_read, 1)
        os._exit(0)
    os.waitpid(pid, 0)
    os.read(ready_read, 1)
    orphans = usage.tree(os.getpid())
    os.close(hold_write)
    if len(orphans) != 1:
        raise RuntimeError(f"an orphan did not come back: {orphans}")
    os.waitpid(orphans[0], 0)
    return "an orphan that left its session comes back to its guardian"


def _seccomp() -> str:
    before = seccomp.denies()
    _load(subprocess=True)
    if before or not seccomp.denies():
        raise RuntimeError("a filter that was loaded changes nothing")
    os.getppid()
    return "TIOCSTI is denied by the filter, answered by the kernel before"


def _load(*, subprocess: bool, cookie: tuple[int, int, int] | None = None) -> None:
    abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
    machine = os.uname().machine
    program = seccomp_rules.target(
        machine=machine, subprocess=subprocess, unix_sockets=False, namespaces=True, cookie=cookie
    )
    abi.seccomp_set_filter(program)


def _exec_cookie() -> str:
    """The kernel must ignore the registers that carry the cookie, and the filter must not."""
    cookie = (1 << 63, 2, 3)
    pid = os.fork()
    if pid == 0:
        _load(subprocess=False, cookie=cookie)
        try:
            disposable.refused(lambda: abi.execve("/bin/true", ("true",), (), (1, 2, 3)))
            abi.execve("/bin/true", ("true",), (), cookie)
        finally:
            os._exit(1)
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError("exec with the cookie failed, or exec without it passed")
    return "exec without the cookie is denied, with it it passes"


def _nproc() -> str:
    """In a user namespace of its own, a process that has used up its count cannot fork."""
    go_read, go_write = os.pipe()
    told_read, told_write = os.pipe()
    who = user_ids.choose(os.geteuid(), os.getegid())
    pid, pidfd = abi.clone(abi.CLONE_NEWUSER)
    if pid == 0:
        os.read(go_read, 1)
        os.write(told_write, _fork_until_denied(who).encode())
        os._exit(0)
    os.close(told_write)
    user_ids.write_maps(who, pid)
    os.write(go_write, b"\0")
    with open(told_read, "rb") as answer:
        words = answer.read().decode()
    os.waitpid(pid, 0)
    os.close(pidfd)
    if not words.startswith("+"):
        raise RuntimeError(words or "the probe died")
    return f"with RLIMIT_NPROC used up a fork is denied ({words[1:]}), with room it is not"


def _fork_until_denied(who: user_ids.Ids) -> str:
    import resource

    try:
        os.setresgid(who.gid, who.gid, who.gid)
        os.setresuid(who.uid, who.uid, who.uid)
        resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
        _fork_once()
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        return f"+{disposable.refused(_fork_once)}"
    except (OSError, RuntimeError) as error:
        return f"-{error}"


def _fork_once() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _sampling() -> str:
    """A grandchild's memory and CPU time are seen from outside, and are not before it has any."""
    ready_read, ready_write = os.pipe()
    hold_read, hold_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(hold_write)
        if os.fork() == 0:
            space = bytearray(32 << 20)
            os.write(ready_write, space[:1])
        os.read(hold_read, 1)
        os._exit(0)
    before = usage.measure(os.getpid()).memory
    os.read(ready_read, 1)
    seen = usage.measure(pid)
    os.close(hold_write)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    if seen.memory < 32 << 20 or seen.tasks < 1:
        raise RuntimeError(f"of 32 MiB in a grandchild {seen.memory} bytes were seen")
    return f"32 MiB of a grandchild are seen ({before >> 20} MiB before it had them)"
