"""Try corral on each kernel in KERNELS. `hosts.py try kernel NAME` runs this module."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Any

import attack_choice
import host_trial
from vm import kernels, qemu, rig, uml

EMULATED = (
    "in QEMU by software emulation, one processor, with the root of Debian 12 and pure cgroup v2:"
)
TIMEOUT = 10_000


@dataclasses.dataclass(frozen=True)
class Kernel:
    machine: Any  # `uml` or a `qemu.Machine`
    how: str


def emulated(whose: str, *source: str, **options: Any) -> Kernel:
    machine = qemu.Machine(kernels.Source(*source, **options), steady=True)
    return Kernel(machine, f"{whose} {EMULATED}")


KERNELS = {
    "5.10": emulated("Debian 11's kernel", "bullseye"),
    "5.15": emulated(
        "Ubuntu 22.04's kernel", "jammy-updates", "linux-image-generic-5.15", ubuntu=True
    ),
    "6.1": emulated("Debian 12's kernel", "bookworm"),
    "6.1-uml": Kernel(
        uml,
        "User-mode Linux of Debian 12, which is built without Landlock and IPv6:",
    ),
    "6.5": emulated(
        "Ubuntu 22.04's kernel for new hardware of 2023",
        "jammy-updates",
        "linux-image-6.5.0-45-generic",
        ubuntu=True,
    ),
    "6.8": emulated("Ubuntu 24.04's kernel", "noble-updates", "linux-image-generic", ubuntu=True),
    "6.12": emulated("Debian 13's kernel", "trixie"),
    "7.2": emulated("The kernel of Debian's next release", "forky"),
    "7.3": emulated("Debian's newest kernel, from experimental,", "experimental"),
    "6.12-aarch64": emulated(
        "Debian 13's kernel", "trixie", "linux-image-arm64", architecture="arm64"
    ),
}


def look(name: str, *parts: str) -> dict[str, Any]:
    """Try one kernel as an ordinary user with a delegated cgroup, and return the parts of its record."""
    kernel = KERNELS[name]
    kernel.machine.require()
    began = time.monotonic()

    def watch(output: bytes) -> None:
        done = output.count(attack_choice.MARK.encode())
        said = f"{output.count(host_trial.MARK.encode())} parts, {done} attacks"
        print(f"{name}: {time.monotonic() - began:.0f} s, {said}", file=sys.stderr, flush=True)

    result = kernel.machine.boot(
        [rig.SYSTEM_PYTHON, "/srv/tests/host_trial.py", *parts],
        as_user=rig.ORDINARY,
        env={"PYTHONPATH": "/srv/pytest", "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=TIMEOUT,
        watch=watch,
    )
    seen = host_trial.parts_in(result.output)
    if seen.get("attacks", {}).get("failed"):
        print(result.output, file=sys.stderr)
    return {"how": kernel.how, **seen}
