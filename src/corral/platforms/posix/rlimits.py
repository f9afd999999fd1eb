"""Resource limits of each process in the target, set before exec and read back."""

from __future__ import annotations

import os
import sys

from corral.record import record

if sys.platform != "win32":
    # Here and not at the point of use: inside, the standard library is out of sight.
    import resource

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.plan.model import Results, Stage
    from corral.policy.model import Control, Limits

PER_PROCESS: Mapping[Control, str] = {"fds": "NOFILE", "address_space": "AS"}
"""Limits of each process, by field of the policy: an rlimit is all that enforces them."""
DATA_FLOOR = 1 << 30
"""Node 24 needs 640 MiB of RLIMIT_DATA to start: the backstop never goes below 1 GiB."""


@record
class Rlimits:
    """(RLIMIT name without its prefix, value), soft and hard alike."""

    name = "rlimits"
    values: tuple[tuple[str, int], ...]
    stage: Stage = "target"

    def describe(self) -> str:
        return "rlimits: " + ", ".join(f"{name} {value}" for name, value in self.values)

    def apply(self, _results: Results) -> None:
        for name, value in self.values:
            kind: int = getattr(resource, f"RLIMIT_{name}")
            # A host limit that is lower already stays: a limit is never raised.
            hard = resource.getrlimit(kind)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            # SIGXCPU may be caught; the hard limit a second later kills.
            top = bound + 1 if name == "CPU" and hard == resource.RLIM_INFINITY else bound
            try:
                resource.setrlimit(kind, (bound, top))
            except ValueError as error:  # EINVAL: macOS refuses a size below what is mapped already
                raise OSError(22, f"RLIMIT_{name} of {bound} is refused") from error

    def verify(self, _results: Results) -> None:
        for name, value in self.values:
            soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
            if not (0 <= soft <= value and 0 <= hard <= value + 1):
                raise OSError(0, f"RLIMIT_{name} reads back as {soft}, {hard}")


def plan(limits: Limits, *, count_init: bool) -> Rlimits:
    """A piped core handler is stopped by a CORE limit of 1, not by 0."""
    values = [("CORE", 1)]
    if limits.memory is not None:
        values.append(("DATA", max(limits.memory, DATA_FLOOR)))
    if limits.pids is not None:
        # init has the target's id, so it counts as one.
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
    return f"a descriptor beyond RLIMIT_NOFILE is denied ({words}), one below is not"
