"""QEMU with software emulation and Debian's own kernels: Landlock and cgroup v2 together.

Needs no hardware and no root, and is ten to twenty times slower than the host: for few tests. Its root is the
host's, read-only over 9p; like user-mode Linux it writes nowhere but into itself.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from vm import kernels, rig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vm.rig import Result

PACKAGE = "qemu-system-x86"
# Landlock: 6.1 has ABI 2 and cannot hold truncation, 6.12 has ABI 6 with scopes.
SUITES = ("bookworm", "trixie")
MACHINE = (
    *("-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"),
    *("-nodefaults", "-display", "none", "-no-reboot"),
)


@functools.cache
def require(suite: str = SUITES[0]) -> str:
    """The emulator's path, or a skip that says what is missing."""
    emulator = rig.need_program("qemu", "qemu-system-x86_64", PACKAGE)
    rig.need_python("qemu")
    rig.need_namespaces("qemu")
    kernels.kernel("qemu", suite)
    return emulator


@dataclasses.dataclass(frozen=True)
class Machine:
    """One suite's kernel."""

    suite: str

    def require(self) -> str:
        return require(self.suite)

    def boot(self, command: Sequence[str], **options) -> Result:
        return boot(command, suite=self.suite, **options)


def boot(
    command: Sequence[str],
    *,
    as_user: int | None = None,
    memory: str = "1G",
    env: Mapping[str, str] | None = None,
    sysctls: Mapping[str, str] | None = None,
    suite: str = SUITES[0],
    timeout: float = 280,
) -> Result:
    """Run `command` as root or, with `as_user`, in a cgroup subtree delegated to that user."""
    emulator = require(suite)
    with rig.workplace() as work:
        job = rig.Job(
            command=tuple(command),
            as_user=as_user,
            env=env or {},
            stage=f"{work}/stage",
            output="/dev/ttyS1",
            sysctls=sysctls or {},
        )
        rig.write_job(work, job)
        init = f"{rig.SYSTEM_PYTHON} -IS {work}/stage/init.py {work}/stage/job.json"
        share = "local,id=host,path=/,readonly=on,security_model=none,multidevs=remap"
        kernel = kernels.kernel("qemu", suite)
        binds = {kernel: work / "kernel"}
        argv = [
            *(emulator, *MACHINE, "-m", memory),
            *("-kernel", f"{work}/kernel/vmlinuz", "-initrd", f"{work}/kernel/initrd"),
            *("-append", f"console=ttyS0 quiet panic=-1 mitigations=off -- {init}"),
            *("-fsdev", share, "-device", "virtio-9p-pci,fsdev=host,mount_tag=host"),
            *("-add-fd", "fd=3,set=1", "-chardev", "file,id=console,path=/dev/fdset/1,append=on"),
            *("-serial", "chardev:console"),
            *("-chardev", "stdio,id=output,signal=off", "-serial", "chardev:output"),
        ]
        return rig.start(rig.enclosed(work, argv, binds), job.token, timeout)
