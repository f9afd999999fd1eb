"""Try corral on each kernel in KERNELS. `hosts.py try kernel NAME` runs this module."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import attack_choice
import host_trial
import hosts
import rigs
from vm import kernels, qemu, rig, uml

if TYPE_CHECKING:
    from collections.abc import Callable

EMULATED = "emulated in QEMU with one processor, the root file system of Debian 12, a home on ext4 and only cgroup v2:"
TIMEOUT = 10_000
SECONDS = float(os.environ.get("CORRAL_TRIAL_SECONDS", "10000"))
PATIENCE = 900
MEMORY = "3G"  # outside the sandbox, some attacks take more than 1 GiB
WIDTHS = {"one_attack": attack_choice.ONE, "every_attack": attack_choice.EVERY}
USERS = {"ordinary": rig.ORDINARY, "root": None}
# The homes are on a disk, because root cannot grant files on a tmpfs before Linux 6.3.
HOMES = {"ordinary": f"/home/rig{rig.ORDINARY}", "root": "/root"}
PROGRAMS = ("git", "node", "runc")
"""The rigs that are declared in the machine if the host has their programs, because the machine
sees the host's files.
"""


@dataclasses.dataclass(frozen=True)
class Kernel:
    machine: Any  # `uml` or a `qemu.Machine`
    how: str
    rigs: tuple[str, ...] = PROGRAMS


def emulated(whose: str, *source: str, **options: Any) -> Kernel:
    """Return a kernel that runs in QEMU. A machine of another architecture can use no rigs, because
    it has its own root, which lacks the rigs' programs.
    """
    modules = (*kernels.DISK, *kernels.NETWORK)
    machine = qemu.Machine(kernels.Source(*source, **options), modules, disk=True, steady=True)
    usable = () if "architecture" in options else (*PROGRAMS, "world")
    return Kernel(machine, f"{whose}, {EMULATED}", usable)


KERNELS = {
    "5.10": emulated("Debian 11's kernel", "bullseye"),
    "5.15": emulated(
        "Ubuntu 22.04's kernel", "jammy-updates", "linux-image-generic-5.15", ubuntu=True
    ),
    "6.1": emulated("Debian 12's kernel", "bookworm"),
    # This kernel has no IPv6, so the `world` rig is not among its rigs.
    "6.1-uml": Kernel(
        uml,
        "User-mode Linux of Debian 12, which is built without Landlock and IPv6:",
    ),
    "6.5": emulated(
        "Ubuntu 22.04's kernel for the new hardware of 2023",
        "jammy-updates",
        "linux-image-6.5.0-45-generic",
        ubuntu=True,
    ),
    "6.8": emulated("Ubuntu 24.04's kernel", "noble-updates", "linux-image-generic", ubuntu=True),
    "6.12": emulated("Debian 13's kernel", "trixie"),
    "7.2": emulated("The kernel of Debian's next release", "forky"),
    "7.3": emulated("Debian's newest kernel, from experimental", "experimental"),
    "6.12-aarch64": emulated(
        "Debian 13's kernel", "trixie", "linux-image-arm64", architecture="arm64"
    ),
}


def look(name: str, *parts: str) -> dict[str, Any]:
    """Try one kernel as an ordinary user with a delegated cgroup, and return the parts of its record.

    The parts `one_attack` and `every_attack` run the attacks of `WIDTHS` as both users.
    """
    widths = [WIDTHS[part] for part in parts if part in WIDTHS]
    others = [part for part in parts if part not in WIDTHS]
    KERNELS[name].machine.require()
    seen: dict[str, Any] = {"how": KERNELS[name].how}
    if others or not parts:
        output = boot(name, rig.ORDINARY, others, {}, lambda _: None)
        seen |= host_trial.parts_in(output)
        if seen.get("attacks", {}).get("failed"):
            print(output, file=sys.stderr)
    for width in widths:
        seen["attacks"] = Attacks(name, width).run(SECONDS)
    return seen


def boot(
    name: str, uid: int | None, parts: list[str], env: dict[str, str], watch: Callable[[str], None]
) -> str:
    """Run these parts of the trial in a machine, and return the machine's output."""
    began = time.monotonic()

    def glance(output: bytes) -> None:
        done = output.count(attack_choice.MARK.encode())
        said = f"{output.count(host_trial.MARK.encode())} parts, {done} lines about attacks"
        print(f"{name}: {time.monotonic() - began:.0f} s, {said}", file=sys.stderr, flush=True)
        watch(output.decode(errors="replace"))

    result = KERNELS[name].machine.boot(
        [rig.SYSTEM_PYTHON, "/srv/tests/host_trial.py", *parts],
        as_user=uid,
        memory=MEMORY,
        env={"PYTHONPATH": "/srv/pytest", "PYTHONDONTWRITEBYTECODE": "1", **env},
        timeout=TIMEOUT,
        watch=glance,
    )
    return result.output


class CutOffError(Exception):
    """Raised when the machine was stopped because an attack did not end, or because the trial ran
    out of time.
    """


class Attacks:
    """Runs the attacks on one kernel as both users, in as many boots as are needed.

    The results are written to a file whenever the machine's output is read. If a trial is
    interrupted, the next trial of the same commit continues from this file. It repeats the attacks
    that failed or did not end.
    """

    def __init__(self, name: str, width: str) -> None:
        self.name, self.width = name, width
        self.file = rigs.cache(f"attacks-{name}-{hosts.source()}.json")
        self.file.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.told: dict[str, host_trial.Told] = {
            user: {
                name: entry if entry and has_result(entry) else None for name, entry in told.items()
            }
            for user, told in known.items()
        }
        self.busy = ("", 0.0)

    def run(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        for user, uid in USERS.items():
            while time.monotonic() < end and self.boot(user, uid, end):
                pass  # the next boot continues after the attack that did not end
        return host_trial.summary(self.width, self.told)

    def boot(self, user: str, uid: int | None, end: float) -> bool:
        """Boot a machine and run this user's remaining attacks. Return whether another boot makes
        sense: some attacks still have no result, and this boot has brought new results.
        """
        known = self.told.get(user, {})
        env = {
            "TMPDIR": HOMES[user],
            attack_choice.WIDTH: self.width,
            attack_choice.DONE: "\n".join(name for name, entry in known.items() if entry),
            rigs.VARIABLE: ",".join(rigs_for(user, KERNELS[self.name])),
        }

        def watch(output: str) -> None:
            found = host_trial.attacks_in(output)
            if found:  # drop the known results of attacks that are no longer chosen
                self.told[user] = {name: entry or known.get(name) for name, entry in found.items()}
            running = next((n for n, e in found.items() if e and is_running(e)), "")
            over = time.monotonic() > end
            if over and running:
                self.told[user][running] = None
            self.file.write_text(json.dumps(self.told))
            if over:
                raise CutOffError
            if running != self.busy[0]:
                self.busy = (running, time.monotonic())
            if running and time.monotonic() - self.busy[1] > PATIENCE:
                raise CutOffError

        try:
            output = boot(self.name, uid, ["every_attack"], env, watch)
        except CutOffError:
            pass
        except rig.MachineError as error:
            watch(str(error))
        else:
            watch(output)
        left = [name for name, entry in self.told.get(user, {}).items() if not entry]
        return bool(left) and self.told.get(user) != known


def rigs_for(user: str, kernel: Kernel) -> list[str]:
    """Return the rigs that this user can use in the machine. Some rigs need root."""
    usable = [name for name in kernel.rigs if not set(rigs.RIGS[name].missing()) - {"root"}]
    return [name for name in usable if user == "root" or not rigs.RIGS[name].root]


def has_result(entry: dict[str, Any]) -> bool:
    """Return whether an attack passed, or was skipped for a reason other than an undeclared rig."""
    if entry["outcome"] == "skipped":
        return not entry["text"].startswith(rigs.PREFIX)
    return bool(entry["outcome"] == "passed")


def is_running(entry: dict[str, Any]) -> bool:
    return bool(entry["outcome"] == attack_choice.STARTED)
