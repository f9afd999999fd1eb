"""Set the target's resource limits before exec, and read them back. Most of them apply to each
process separately, not to the whole tree.
"""

from __future__ import annotations

import os
import sys

from corral.record import record

if sys.platform != "win32":
    # Imported before the sandbox exists, because the sandbox may hide the standard library.
    import resource

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.plan.model import Results, Stage
    from corral.policy.model import Control, Limits

PER_PROCESS: Mapping[Control, str] = {"fds": "NOFILE", "address_space": "AS"}
"""Policy limits that apply to each process separately, and that no other mechanism enforces."""
DATA_FLOOR = 1 << 30
"""The lowest RLIMIT_DATA that corral sets, because Node 24 needs 640 MiB to start."""


@record
class Rlimits:
    """Sets resource limits. `values` lists pairs (name without the prefix RLIMIT_, limit)."""

    name = "rlimits"
    values: tuple[tuple[str, int], ...]
    stage: Stage = "target"

    def describe(self) -> str:
        return "rlimits: " + ", ".join(f"{name} {value}" for name, value in self.values)

    def apply(self, _results: Results) -> None:
        for name, value in self.values:
            set_limit(name, value)

    def verify(self, _results: Results) -> None:
        for name, value in self.values:
            soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
            if not (0 <= soft <= value and 0 <= hard <= value + 1):
                text = f"RLIMIT_{name} is {soft} (hard limit {hard}), but {value} was set"
                raise OSError(0, text)


def set_limit(name: str, value: int) -> None:
    kind: int = getattr(resource, f"RLIMIT_{name}")
    # Keep a lower limit that the host has set, because corral never raises a limit.
    hard = resource.getrlimit(kind)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    # At the soft limit of CPU time the program gets SIGXCPU, which it can catch. At the hard limit,
    # one second later, the kernel kills it.
    top = bound + 1 if name == "CPU" and hard == resource.RLIM_INFINITY else bound
    try:
        resource.setrlimit(kind, (bound, top))
    # macOS returns EINVAL if an address space limit is below the memory that is already mapped.
    # Python turns this error into a ValueError with an unrelated message.
    except ValueError as error:
        raise OSError(22, f"RLIMIT_{name} of {bound} was refused") from error


def plan(limits: Limits, *, count_init: bool) -> Rlimits:
    """Return the step with the limits to set.

    RLIMIT_CORE is 1 and not 0, so that the target leaves no core dump: with 0, Linux would still
    run the host's core dump handler. With `count_init`, the limit of processes is one higher.
    """
    values = [("CORE", 1)]
    if limits.memory is not None:
        values.append(("DATA", max(limits.memory, DATA_FLOOR)))
    if limits.pids is not None:
        # If init is the sandbox's first process, it has the target's user id, so RLIMIT_NPROC
        # counts it too.
        values.append(("NPROC", limits.pids + int(count_init)))
    for field, name in PER_PROCESS.items():
        if (value := getattr(limits, field)) is not None:
            values.append((name, value))
    if limits.disk is not None:
        values.append(("FSIZE", limits.disk))
    if limits.cpu_time is not None:
        values.append(("CPU", max(1, -(-limits.cpu_time // 1000))))
    return Rlimits(values=tuple(values))


def probe() -> str:
    from corral.platforms.posix import disposable

    opened = os.open("/", os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 1, opened + 1))
    words = disposable.refused(lambda: os.open("/", os.O_RDONLY))
    os.close(opened)
    os.close(os.open("/", os.O_RDONLY))
    return f"a descriptor beyond RLIMIT_NOFILE is denied ({words}), but not one below it"
