"""Boot a virtual machine with systemd as PID 1, logind and a user manager. The machine is user-mode
Linux with an image from mmdebstrap.

The command runs in the user's login session. The session's cgroup is not delegated, but the user
manager's cgroup is.
"""

from __future__ import annotations

import functools
import subprocess
from typing import TYPE_CHECKING

import rigs
from vm import rig, uml

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping, Sequence

    from vm.rig import Result

NAME = "systemd"
SUITE = "bookworm"
INCLUDE = ("systemd", "systemd-sysv", "dbus", "dbus-user-session", "libpam-systemd", "python3")
UNUSED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
DELEGATE = "cpu cpuset io memory pids"
RECIPE = 1  # increase this if the image changes, because the name of the cached image contains it


@functools.cache
def require() -> tuple[str, pathlib.Path]:
    """Return the kernel and the image. The first call builds the image."""
    kernel = uml.require()
    target = rigs.cache(f"systemd-{SUITE}-{RECIPE}")
    if not target.exists():
        with rig.building(target) as partial:
            build(partial)
    return kernel, target


def build(target: pathlib.Path) -> None:
    """Build the image, and unpack it without owners and devices, so that every user can read all
    files.
    """
    archive = target.with_suffix(".tar")
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in UNUSED]
    argv = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={','.join(INCLUDE)}",
        *options,
    ]
    try:
        done = subprocess.run([*argv, SUITE, archive], capture_output=True, text=True, check=False)
        if done.returncode:
            rigs.broken("systemd", f"mmdebstrap failed: {done.stderr.strip()[-400:]}")
        unpack = ["tar", "--extract", "--no-same-owner", "--exclude=./dev/*", "--mode=a+rX"]
        subprocess.run([*unpack, f"--directory={target}", f"--file={archive}"], check=True)
        subprocess.run(["chmod", "-R", "a+rX,u+w", target], check=True)
    finally:
        archive.unlink(missing_ok=True)


def boot(
    command: Sequence[str],
    *,
    as_user: int | None = None,
    memory: str = "1G",
    env: Mapping[str, str] | None = None,
    sysctls: Mapping[str, str] | None = None,
    delegate: str | None = DELEGATE,
    timeout: float = 200,
) -> Result:
    """Run `command` in a login session of `as_user`, or as root in a system service."""
    kernel, image = require()
    with rig.workplace() as work:
        job = rig.Job(
            command=tuple(command),
            as_user=as_user,
            env=env or {},
            stage=f"{work}/stage",
            output=uml.OUTPUT,
            root=f"{work}/image",
            modules=uml.modules(kernel, ["overlay"]),
            sysctls=sysctls or {},
            delegate=delegate,
        )
        rig.write_job(work, job)
        argv = uml.command_line(kernel, work, "systemd_init.py", memory)
        return rig.start(rig.enclosed(work, argv, {image: work / "image"}), job.token, timeout)
