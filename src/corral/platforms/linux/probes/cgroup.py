"""Whether a cgroup enforces its limits: each is set and reached, beside a control without it."""

import contextlib
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from corral.directories import directories
from corral.plan.host import Finding
from corral.plan.model import Results
from corral.platforms.doctor_lines import Line
from corral.platforms.linux import block_devices
from corral.platforms.linux.mechanisms import cgroup
from corral.platforms.posix import disposable
from corral.record import replace

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

PREFIX = "cgroup_"
MIB = 1 << 20
HINT = "delegate a cgroup to this user (systemd: a user service or scope with Delegate=yes)"


def probe() -> tuple[Finding, ...]:
    base = cgroup.find()
    if base is None:
        mounted = cgroup.mount()
        why = "cgroup v2 is not mounted" if mounted is None else f"{mounted[1]} is not this user's"
        return tuple(_absent(name, why) for name in cgroup.CONTROLLERS)
    return tuple(_probe(base, name) for name in cgroup.CONTROLLERS)


def _absent(controller: str, why: str) -> Finding:
    return Finding(capability=PREFIX + controller, status="absent", evidence=why, hint=HINT)


def _probe(base: cgroup.Base, controller: str) -> Finding:
    if controller not in base.controllers:
        return _absent(controller, f"{base.path} does not offer the {controller} controller")
    if base.manager:
        proven, words = _in_scope(base, controller)
        where = "in a scope that systemd makes"
    else:
        proven, words = disposable.observe(lambda: PROBES[controller](base))
        where = f"at {base.path}"
    if not proven:
        return _absent(controller, f"systemd: {words}" if base.manager else words)
    return Finding(capability=PREFIX + controller, status="proven", evidence=f"{where}: {words}")


def is_cgroup(finding: Finding) -> bool:
    return finding.capability.startswith(PREFIX)


def doctor_lines(findings: list[Finding]) -> list[Line]:
    """Return one line for the controllers that are proven, and one for the others and why."""
    proven = [item for item in findings if item.status == "proven"]
    absent = [item for item in findings if item.status != "proven"]
    names = ", ".join(item.capability.removeprefix(PREFIX) for item in absent)
    why = absent[0].evidence if absent else ""
    if not proven:
        return [("absent", f"Cgroups v2: NOT available ({why})", None)] if absent else []
    where = proven[0].evidence.partition(": ")[0]
    lines: list[Line] = [("proven", f"Cgroups v2: available {where}", None)]
    if absent:
        lines.append(("absent", f"Cgroups delegation: limited ({names}: {why})", None))
    return lines


def _in_scope(base: cgroup.Base, controller: str) -> tuple[bool, str]:
    """Make the leaves beside the probe itself, which keeps the scope alive."""
    from corral.platforms.linux.mechanisms import systemd_scope

    unit = systemd_scope.unit_of(f"probe-{controller}-of-{os.getpid()}")

    def attempt() -> str:
        path = systemd_scope.start(unit, (os.getpid(),), ())
        return PROBES[controller](replace(base, path=path))

    try:
        return disposable.observe(attempt)
    finally:
        systemd_scope.stop(unit)


def _inside(
    base: cgroup.Base,
    controller: str,
    settings: tuple[tuple[str, str], ...],
    act: Callable[[], int],
) -> tuple[int, dict[str, int]]:
    """Run `act` in a leaf with `settings`: (its wait status, cpu.stat of the leaf)."""
    run = f"probe-{controller}-{os.getpid()}"
    leaf = cgroup.Leaf(base=base.path, run=run, controllers=(controller,), settings=settings)
    try:
        leaf.apply(Results())
        go_read, go_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(go_read, 1)
            os._exit(act())
        cgroup.write(f"{leaf.path}/cgroup.procs", str(pid))
        os.write(go_write, b"\0")
        status = os.waitpid(pid, 0)[1]
        return status, cgroup.table(f"{leaf.path}/cpu.stat")
    finally:
        cgroup.remove(leaf.path)


def _hog() -> int:
    space = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(space), 4096):
        space[at] = 1
    return 0


def _memory(base: cgroup.Base) -> str:
    limits = (("memory.max", str(16 * MIB)), ("memory.swap.max", "0"), ("memory.oom.group", "1"))
    killed = _inside(base, "memory", limits, _hog)[0]
    free = _inside(base, "memory", (("memory.max", str(256 * MIB)),), _hog)[0]
    if killed != 9 or free != 0:
        raise RuntimeError(f"memory.max did not kill a hog (wait status {killed}, control {free})")
    return "64 MiB under memory.max 16 MiB is killed, under 256 MiB it is not"


def _fork() -> int:
    try:
        pid = os.fork()
    except OSError:
        return 1
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return 0


def _pids(base: cgroup.Base) -> str:
    denied = _inside(base, "pids", (("pids.max", "1"),), _fork)[0]
    free = _inside(base, "pids", (("pids.max", "2"),), _fork)[0]
    if denied != 1 << 8 or free != 0:
        raise RuntimeError(f"pids.max did not deny a fork (wait status {denied}, control {free})")
    return "a fork beyond pids.max is denied, one below is not"


def _spin() -> int:
    end = time.monotonic() + 0.25
    while time.monotonic() < end:
        pass
    return 0


def _cpu(base: cgroup.Base) -> str:
    slowed = _inside(base, "cpu", (("cpu.max", f"5000 {cgroup.PERIOD}"),), _spin)[1]
    free = _inside(base, "cpu", (), _spin)[1]
    if not slowed.get("nr_throttled") or free.get("nr_throttled"):
        raise RuntimeError("cpu.max did not throttle a spinner")
    return "a spinner is throttled under cpu.max, not without"


def _io(base: cgroup.Base) -> str:
    """Uncached reads of a file on a disk, the system's or the user's, with and without io.max."""
    with _file_on_a_disk() as (file, disk):
        limit = (("io.max", f"{disk} rbps={MIB}"),)
        slow = _seconds(lambda: _inside(base, "io", limit, lambda: _read(file)))
        fast = _seconds(lambda: _inside(base, "io", (), lambda: _read(file)))
    if slow < 0.3 or fast * 2 > slow:
        raise RuntimeError(f"io.max did not slow reads down ({slow:.2f} s, {fast:.2f} s without)")
    return "uncached reads are slowed down by io.max, not without"


@contextlib.contextmanager
def _file_on_a_disk() -> Iterator[tuple[str, str]]:
    """(path, disk): the interpreter, or where no disk is behind that, a file made for this."""
    program = os.path.realpath(sys.executable)
    if disk := block_devices.disk_of(program):
        yield program, disk
        return
    folder = directories().cache
    os.makedirs(folder, 0o700, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="probe-") as made:
        disk = block_devices.disk_of(made.name)
        if not disk:
            raise RuntimeError(f"there is no disk behind {program} or {folder}")
        made.write(os.urandom(MIB // 2))
        made.flush()
        os.fsync(made.fileno())
        yield made.name, disk


def _read(file: str) -> int:
    fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, MIB // 2)
    return 0 if os.preadv(fd, [buffer], 0) else 1


def _seconds(act: Callable[[], object]) -> float:
    start = time.monotonic()
    act()
    return time.monotonic() - start


PROBES: dict[str, Callable[[cgroup.Base], str]] = {
    "memory": _memory,
    "pids": _pids,
    "cpu": _cpu,
    "io": _io,
}
