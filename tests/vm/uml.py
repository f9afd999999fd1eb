"""User-mode Linux from Debian's `user-mode-linux`: a kernel as an ordinary process, booted in seconds.

It has pure cgroup v2 with cpu, io, memory and pids, user namespaces and seccomp, and it has no Landlock.
Its root is the host's, read-only; it can reach nothing else of the host, and writes nowhere but into itself. Home is on
a disk of its own, which ends with it.
"""

from __future__ import annotations

import functools
import glob
import subprocess
from typing import TYPE_CHECKING

from vm import rig

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping, Sequence

    from vm.rig import Result

PACKAGE = "user-mode-linux"
OUTPUT = "/dev/ttyS0"


@functools.cache
def require() -> str:
    """The kernel's path, or a skip that says what is missing."""
    kernel = rig.need_program("uml", "linux.uml", PACKAGE)
    rig.need_program("uml", "mke2fs", "e2fsprogs")
    rig.need_python("uml")
    rig.need_namespaces("uml")
    return kernel


def modules(kernel: str) -> tuple[str, ...]:
    version = subprocess.check_output([kernel, "--version"], text=True).strip()
    found = glob.glob(f"/usr/lib/uml/modules/{version}/**/overlay.ko", recursive=True)
    return tuple(found[:1])


def boot(
    command: Sequence[str],
    *,
    as_user: int | None = None,
    memory: str = "1G",
    env: Mapping[str, str] | None = None,
    sysctls: Mapping[str, str] | None = None,
    timeout: float = 100,
) -> Result:
    """Run `command` as root or, with `as_user`, in a cgroup subtree delegated to that user."""
    kernel = require()
    with rig.workplace() as work:
        job = rig.Job(
            command=tuple(command),
            as_user=as_user,
            env=env or {},
            stage=f"{work}/stage",
            output=OUTPUT,
            modules=modules(kernel),
            sysctls=sysctls or {},
        )
        rig.write_job(work, job)
        argv = command_line(kernel, work, "init.py", memory)
        argv[1:1] = [f"ubd0={work}/memory/changes,{rig.disk(work)}"]
        return rig.start(rig.enclosed(work, argv), job.token, timeout)


def command_line(kernel: str, work: pathlib.Path, init: str, memory: str) -> list[str]:
    """The kernel's stdout is what is written to OUTPUT inside, its stderr the console."""
    return [
        *(kernel, f"mem={memory}", f"uml_dir={work}/memory/"),
        *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"),
        *(
            "con=null",
            "con0=null,fd:2",
            "ssl=null",
            "ssl0=null,fd:1",
            "quiet",
            "panic=1",
            "selinux=0",
        ),
        *(f"init={rig.SYSTEM_PYTHON}", "--", "-IS"),
        *(f"{work}/stage/{init}", f"{work}/stage/job.json"),
    ]
