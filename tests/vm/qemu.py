"""Boot distribution kernels in QEMU's software emulation. These kernels have both Landlock and
cgroup v2.

Emulation needs neither hardware support nor root. It is ten to twenty times slower than the host,
so few tests use it. The machine mounts its root read-only over 9p: the host's root or, for another
architecture, an unpacked Debian. As with user-mode Linux, all writes stay in the machine.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from typing import TYPE_CHECKING

import rigs
from vm import foreign, kernels, rig
from vm.kernels import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vm.rig import Result

# bookworm has Linux 6.1 with Landlock ABI 2, which cannot deny truncation. trixie has Linux 6.12
# with ABI 6, which also has scopes.
SUITES = ("bookworm", "trixie")
# This Debian suite has Linux 7.1 or later, whose Landlock ABI 9 has a right for unix sockets.
NEWEST = "forky"


# The machine has only one processor. With two processors, the emulator sometimes runs an instruction while the guest's
# kernel patches it. The guest then crashes with "Oops: int3" (seen in the scheduler when a cgroup's first CPU quota is
# set).
COMMON = (
    *("-accel", "tcg,thread=single", "-smp", "1"),
    *("-nodefaults", "-display", "none", "-no-reboot"),
)


@dataclasses.dataclass(frozen=True)
class Board:
    """The emulated hardware. It has one serial line for the console and another for the output of
    the command.
    """

    emulator: str
    machine: tuple[str, ...]
    second: tuple[str, ...]
    console: str
    output: str


BOARDS = {
    "amd64": Board(
        emulator="qemu-system-x86_64",
        # These two features are turned off, because with them the kernel clears and copies memory
        # byte by byte, which is several times slower in the emulator.
        machine=("-machine", "q35", "-cpu", "max,-erms,-fsrm"),
        second=("-serial", "chardev:output"),
        console="ttyS0",
        output="/dev/ttyS1",
    ),
    "arm64": Board(
        emulator="qemu-system-aarch64",
        # Without `pauth-impdef` the emulator spends half of its time on pointer signatures.
        machine=("-machine", "virt", "-cpu", "max,pauth-impdef=on"),
        second=("-device", "pci-serial,chardev=output"),
        console="ttyAMA0",
        output="/dev/ttyS0",
    ),
}


@functools.cache
def require(source: Source) -> str:
    """Check that this host can emulate the machine, and return the emulator."""
    rig.need_python("qemu")
    rig.need_namespaces("qemu")
    kernels.kernel("qemu", source)
    emulator = BOARDS[source.architecture].emulator
    return rigs.found(emulator) or emulator


# The guest's clock counts instructions, so a busy host does not cause timeouts in the guest. With
# shift=3 each instruction advances the clock by 2**3 = 8 nanoseconds. On an idle host an
# instruction takes about that long.
STEADY = ("-icount", "shift=3")


@dataclasses.dataclass(frozen=True)
class Machine:
    """An emulated machine with one kernel.

    The machine loads `modules` before it runs a command. With `disk` the home is on a temporary
    disk. With `steady` the machine's clock counts instructions, which makes the machine slower.
    """

    source: Source
    modules: tuple[str, ...] = ()
    disk: bool = False
    steady: bool = False

    @property
    def NAME(self) -> str:
        return f"qemu-{self.source.name}"

    def require(self) -> str:
        return require(self.source)

    def boot(
        self,
        command: Sequence[str],
        *,
        as_user: int | None = None,
        memory: str = "1G",
        env: Mapping[str, str] | None = None,
        sysctls: Mapping[str, str] | None = None,
        timeout: float = 280,
        watch: Callable[[bytes], None] | None = None,
    ) -> Result:
        """Run `command` as root or, if `as_user` is set, as that user in a delegated cgroup
        subtree.
        """
        self.require()
        with rig.workplace() as work:
            modules = self.modules and kernels.more_modules("qemu", self.source, self.modules)
            binds = {kernels.kernel("qemu", self.source): work / "kernel"}
            binds |= {modules[0].parent: work / "stage/modules"} if modules else {}
            root, stage = pathlib.Path("/"), work / "stage"
            if self.source.architecture != "amd64":
                root, stage = work / "image", pathlib.Path("/srv")
                binds |= {
                    foreign.image(self.source.architecture): root,
                    work / "stage": root / "srv",
                }
            job = rig.Job(
                command=tuple(command),
                as_user=as_user,
                env=env or {},
                stage=str(stage),
                output=BOARDS[self.source.architecture].output,
                modules=tuple(f"{stage}/modules/{module.name}" for module in modules),
                sysctls=sysctls or {},
            )
            rig.write_job(work, job)
            argv = self.command_line(work, root, stage, memory)
            if self.disk:
                argv += ["-drive", f"file={rig.disk(work)},format=raw,if=virtio,snapshot=on"]
            return rig.start(rig.enclosed(work, argv, binds), job.token, timeout, watch)

    def command_line(
        self, work: pathlib.Path, root: pathlib.Path, stage: pathlib.Path, memory: str
    ) -> list[str]:
        board = BOARDS[self.source.architecture]
        init = f"{rig.SYSTEM_PYTHON} -IS {stage}/init.py {stage}/job.json"
        share = f"local,id=host,path={root},readonly=on,security_model=none,multidevs=remap"
        return [
            *(
                self.require(),
                *board.machine,
                *COMMON,
                *(STEADY if self.steady else ()),
                "-m",
                memory,
            ),
            *("-kernel", f"{work}/kernel/vmlinuz", "-initrd", f"{work}/kernel/initrd"),
            *("-append", f"console={board.console} quiet panic=-1 mitigations=off -- {init}"),
            *("-fsdev", share, "-device", "virtio-9p-pci,fsdev=host,mount_tag=host"),
            *("-add-fd", "fd=3,set=1", "-chardev", "file,id=console,path=/dev/fdset/1,append=on"),
            *("-serial", "chardev:console"),
            *("-chardev", "stdio,id=output,signal=off", *board.second),
        ]
