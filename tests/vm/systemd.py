"""A machine with systemd as PID 1, logind and a user manager: user-mode Linux on an image made by mmdebstrap.

The command runs in a login session of the user, whose own cgroup is not the user's; the user manager's subtree is.
"""

from __future__ import annotations

import functools
import subprocess
from typing import TYPE_CHECKING

from vm import rig, uml

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping, Sequence

    from vm.rig import Result

PACKAGE = "mmdebstrap"
SUITE = "bookworm"
INCLUDE = ("systemd", "systemd-sysv", "dbus", "dbus-user-session", "libpam-systemd", "python3")
UNUSED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
DELEGATE = "cpu cpuset io memory pids"
RECIPE = 1  # of the image: a change here is a new cache entry


@functools.cache
def require() -> tuple[str, pathlib.Path]:
    """The kernel and the image, or a skip that says what is missing."""
    kernel = uml.require()
    mmdebstrap = rig.need_program("systemd", "mmdebstrap", PACKAGE)
    target = rig.cache(f"systemd-{SUITE}-{RECIPE}")
    if not target.exists():
        with rig.building(target) as partial:
            build(mmdebstrap, partial)
    return kernel, target


def build(mmdebstrap: str, target: pathlib.Path) -> None:
    """Through a tarball: nothing in it belongs to anyone or is a device, and all of it can be read."""
    archive = target.with_suffix(".tar")
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in UNUSED]
    argv = [mmdebstrap, "--quiet", "--variant=minbase", f"--include={','.join(INCLUDE)}", *options]
    try:
        done = subprocess.run([*argv, SUITE, archive], capture_output=True, text=True, check=False)
        if done.returncode:
            rig.unavailable("systemd", f"mmdebstrap failed: {done.stderr.strip()[-400:]}")
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
    """Run `command` in a login session of `as_user`, or as root in a service of the system's."""
    kernel, image = require()
    with rig.workplace() as work:
        job = rig.Job(
            command=tuple(command),
            as_user=as_user,
            env=env or {},
            stage=f"{work}/stage",
            output=uml.OUTPUT,
            root=f"{work}/image",
            modules=uml.modules(kernel),
            sysctls=sysctls or {},
            delegate=delegate,
        )
        rig.write_job(work, job)
        argv = uml.command_line(kernel, work, "systemd_init.py", memory)
        return rig.start(rig.enclosed(work, argv, {image: work / "image"}), job.token, timeout)
