"""Boot Debian's user-mode Linux: a kernel that is an ordinary process and boots in seconds.

The kernel has pure cgroup v2 with cpu, io, memory and pids, user namespaces and seccomp, but no
Landlock.

The machine's root is the host's root, mounted read-only. The machine cannot reach any other part of
the host, and all writes stay in the machine. The home is on a separate disk, whose contents are
lost when the machine ends.
"""

from __future__ import annotations

import functools
import pathlib
import subprocess
from typing import TYPE_CHECKING

import rigs
from vm import rig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vm.rig import Result

NAME = "uml"
OUTPUT = "/dev/ttyS0"


@functools.cache
def require() -> str:
    """Check that this host can run user-mode Linux, and return the kernel."""
    rig.need_python("uml")
    rig.need_namespaces("uml")
    return rigs.found("linux.uml") or "linux.uml"


def modules(kernel: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the files of the wanted kernel modules, each after the modules that it needs."""
    version = subprocess.check_output([kernel, "--version"], text=True).strip()
    top = pathlib.Path("/usr/lib/uml/modules", version)
    order: dict[str, None] = {}
    for line in (top / "modules.dep").read_text().splitlines():
        path, _, needed = line.partition(":")
        if pathlib.Path(path).stem in wanted:
            order |= dict.fromkeys([*reversed(needed.split()), path])
    return tuple(str(top / path) for path in order)


def boot(
    command: Sequence[str],
    *,
    as_user: int | None = None,
    memory: str = "1G",
    env: Mapping[str, str] | None = None,
    sysctls: Mapping[str, str] | None = None,
    timeout: float = 100,
    watch: Callable[[bytes], None] | None = None,
    wanted: Sequence[str] = (),
) -> Result:
    """Run `command` as root or, if `as_user` is set, as that user in a delegated cgroup subtree.

    `wanted` lists additional kernel modules to load.
    """
    kernel = require()
    with rig.workplace() as work:
        job = rig.Job(
            command=tuple(command),
            as_user=as_user,
            env=env or {},
            stage=f"{work}/stage",
            output=OUTPUT,
            modules=modules(kernel, ("overlay", *wanted)),
            sysctls=sysctls or {},
        )
        rig.write_job(work, job)
        argv = command_line(kernel, work, "init.py", memory)
        argv[1:1] = [f"ubd0={work}/memory/changes,{rig.disk(work)}"]
        return rig.start(rig.enclosed(work, argv), job.token, timeout, watch)


def command_line(kernel: str, work: pathlib.Path, init: str, memory: str) -> list[str]:
    """Return the kernel's command line. The output of the machine's command goes to stdout, and the
    machine's console goes to stderr.
    """
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
