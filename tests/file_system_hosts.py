"""Try corral on a file system of `file_systems.py`. `hosts.py try file_system NAME` calls `look`."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from typing import Any

import file_system_trial
from file_systems import FILE_SYSTEMS
from vm import kernels, qemu, rig, uml

TIMEOUT = 1500
QEMU = qemu.Machine(kernels.Source("trixie"), modules=kernels.FILE_SYSTEMS)
MODULES = ("loop", "nfsd", "nfsv4", "quota_v2", "9p", "9pnet_fd")
MACHINES: dict[str, tuple[Callable[..., rig.Result], str]] = {
    "qemu": (QEMU.boot, "Debian 13's kernel in QEMU"),
    "uml": (functools.partial(uml.boot, wanted=MODULES), "User-mode Linux 6.1, without Landlock"),
}


def look(name: str) -> dict[str, Any]:
    """Try one file system on this host, or in a virtual machine if this kernel cannot mount it."""
    file_system = FILE_SYSTEMS[name]
    if file_system.machine:
        tries, system = boot(name), MACHINES[file_system.machine][1]
    else:
        tries = list(file_system_trial.look(name))
        system = f"Linux {os.uname().release.partition('-')[0]}"
    return {"how": file_system.how, "system": system, "tries": tries}


def boot(name: str) -> list[file_system_trial.Try]:
    """Try a file system as root in a virtual machine. If the trial fails, raise an error with the machine's output."""
    command = [rig.SYSTEM_PYTHON, "/srv/tests/file_system_trial.py", name]
    result = MACHINES[FILE_SYSTEMS[name].machine][0](command, timeout=TIMEOUT)
    if result.returncode:
        raise AssertionError(f"the trial failed:\n{result.output}\n{result.console}")
    lines = result.output.splitlines()
    mark = file_system_trial.MARK
    return [json.loads(line.removeprefix(mark)) for line in lines if line.startswith(mark)]
