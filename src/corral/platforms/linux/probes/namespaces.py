"""Probe namespaces by setting up a real sandbox that runs a `Trial` in place of a target."""

import os
import sys
import tempfile
from errno import ENOSPC, ENOSYS
from typing import TYPE_CHECKING

from corral.abi import linux as abi
from corral.plan.host import Finding
from corral.plan.model import Plan, Results
from corral.platforms.linux import host_files, spawn, tier_namespaces
from corral.platforms.linux.probes import network, surroundings
from corral.platforms.posix import disposable
from corral.platforms.steps import StepFailed, parse_exec_result, unverified
from corral.policy.model import Limits, Policy
from corral.programs.model import Program
from corral.record import record, replace

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Stage

LABELS = (
    ("user_namespaces", "User namespaces", "available"),
    ("mount_namespace", "Mount namespaces", "available"),
    ("pid_namespace", "PID namespaces", "available"),
    ("network_namespace", "Network namespaces", "available"),
    ("private_space", "Private space of limited size", "available"),
)
SPACE = 1 << 20
"""The size of the trial's private space, in bytes."""
NEWER = "a newer kernel: Linux 5.12 or later (mount_setattr)"


@record
class Trial:
    """A step that runs in place of a target.

    It tries what a sandbox must deny, and writes the errors to the pipe `fd`.
    """

    name = "trial"
    fd: int
    marker: str
    port: int
    host_pid: int
    stage: "Stage" = "target"
    verify = unverified

    def describe(self) -> str:
        return "try the walls from inside"

    def apply(self, _results: Results) -> None:
        refused = disposable.refused
        saw = [
            f"filesystem={refused(lambda: os.close(os.open(self.marker, os.O_RDONLY)))}",
            f"process={refused(lambda: os.listdir(f'/proc/{self.host_pid}'))}",
            f"signal={refused(lambda: os.kill(self.host_pid, 0))}",
            f"network={refused(lambda: network.connect(self.port))}",
            f"space={_fill_space()}",
        ]
        os.write(self.fd, "\n".join(saw).encode())


def probe() -> tuple[Finding, ...]:
    names = [capability for capability, _, _ in LABELS]
    proven, words = disposable.observe(_try_sandbox)
    if proven:
        saw = dict(line.split("=", 1) for line in words.split("\n"))
        texts = (
            f"a sandbox was made by uid {os.geteuid()}",
            f"a host file is readable outside, but not inside ({saw['filesystem']})",
            f"a host process is seen outside, but not inside ({saw['process']}, {saw['signal']})",
            f"a host port is reached outside, but not inside ({saw['network']})",
            f"a file that fits into the space is written, but not a larger file ({saw['space']})",
        )
        return tuple(
            Finding(capability=name, status="proven", evidence=text)
            for name, text in zip(names, texts, strict=True)
        )
    around = surroundings.find()
    if not around.forbids and os.strerror(ENOSYS) in words:
        around = replace(around, hint=NEWER, space_hint=NEWER)
    alone, why = disposable.observe(_make_user_namespace)
    user = Finding(
        capability=names[0],
        status="proven" if alone else "absent",
        evidence="a user namespace was made and mapped" if alone else why,
        hint="" if alone else around.hint,
    )
    hints = dict.fromkeys(names[1:], around.hint) | {"private_space": around.space_hint}
    rest = [
        Finding(capability=name, status="absent", evidence=words, hint=hint)
        for name, hint in hints.items()
    ]
    return (user, *rest)


def _fill_space() -> str:
    """Write a file that fits into the tmpfs of the private directories, and then another that does
    not fit.

    Return the error for the second file.
    """

    def write(name: str) -> None:
        with open(f"{tier_namespaces.TEMPORARY}/{name}", "wb", buffering=0) as file:
            file.write(bytes(SPACE * 2 // 3))
            if os.fstat(file.fileno()).st_size < SPACE * 2 // 3:
                raise OSError(ENOSPC, os.strerror(ENOSPC))

    write("fits")
    return disposable.refused(lambda: write("too much"))


def _try_sandbox() -> str:
    """Create a sandbox as `run` does, and try forbidden operations in it.

    First try the same operations outside the sandbox, where they must succeed.
    """
    read, write = os.pipe()
    port, listener = network.listen()
    with tempfile.NamedTemporaryFile() as marker:
        os.close(os.open(marker.name, os.O_RDONLY))
        os.listdir(f"/proc/{os.getpid()}")
        os.kill(os.getpid(), 0)
        network.connect(port)
        program = Program(path="/", argv=("trial",))
        policy = Policy(limits=Limits(disk=SPACE))
        seen = host_files.survey(policy, program, home=os.path.dirname(marker.name))
        steps = tier_namespaces.compose(policy, program, seen, ())
        trial = Trial(fd=write, marker=marker.name, port=port, host_pid=os.getpid())
        plan = Plan(program=program, steps=(*steps, trial), controls=(), environment=())
        # The trial needs no standard streams. Pass the pipe on which it answers as all three.
        child = spawn.spawn(plan, (write, write, write))
        os.close(write)
        with open(child.exec_pipe, "rb", closefd=False) as pipe:
            failed = parse_exec_result(pipe.read())
        child.kill()
        child.reap()
    os.close(listener)
    with open(read, "rb") as answer:
        words = answer.read().decode()
    # After the trial the plan executes "/". This must fail, because "/" is a directory. So if
    # anything but the exec failed, the sandbox does not work on this host.
    if failed is None or failed.step != "exec":
        raise failed or StepFailed("trial", "executing a directory did not fail")
    return words


def _make_user_namespace() -> str:
    pid, pidfd = abi.clone(abi.CLONE_NEWUSER)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(pidfd)
    return ""
