"""Probe whether a cgroup enforces limits.

Exceed each limit in a cgroup, and then do the same under a higher limit or without a limit. The
limit works if the kernel stops only the first attempt.
"""

import contextlib
import mmap
import os
import re
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from corral.abi.private_directory import make_private_directory
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
Settings = tuple[tuple[str, str], ...]
MIB = 1 << 20
MIN_QUOTA = 1000
"""The smallest quota that cpu.max accepts, in microseconds per period. The probe of io.max uses the
same number as bytes per second.
"""
PACE, LOOKS = 0.01, 3
HINT = "delegate a cgroup to this user (systemd: a user service or scope with Delegate=yes)"
NO_DISK = "there is no disk behind"
DISK_HINT = "set XDG_CACHE_HOME to a directory on a disk of this machine"


def probe() -> tuple[Finding, ...]:
    base = cgroup.find()
    if base is None:
        mounted = cgroup.mount()
        why = (
            "cgroup v2 is not mounted"
            if mounted is None
            else f"this user cannot write to {mounted[1]}"
        )
        return tuple(_absent(name, why) for name in cgroup.CONTROLLERS)
    return tuple(_probe(base, name) for name in cgroup.CONTROLLERS)


def _absent(controller: str, why: str) -> Finding:
    hint = DISK_HINT if why.startswith(NO_DISK) else HINT
    return Finding(capability=PREFIX + controller, status="absent", evidence=why, hint=hint)


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
    """Return the lines of `corral doctor` about cgroups.

    One line says where the proven controllers are available, another why the others are absent.
    """
    proven = [item for item in findings if item.status == "proven"]
    absent = [item for item in findings if item.status != "proven"]
    names = ", ".join(item.capability.removeprefix(PREFIX) for item in absent)
    why = absent[0].evidence if absent else ""
    if not proven:
        return [("absent", f"Cgroups v2: NOT available ({why})", absent[0])] if absent else []
    where = proven[0].evidence.partition(": ")[0]
    lines: list[Line] = [("proven", f"Cgroups v2: available {where}", None)]
    if absent:
        lines.append(("absent", f"Cgroups delegation: limited ({names}: {why})", absent[0]))
    return lines


def _in_scope(base: cgroup.Base, controller: str) -> tuple[bool, str]:
    """Probe a controller in a scope that systemd makes.

    The probe's own process stays in the scope, because systemd removes a scope that is empty.
    """
    from corral.platforms.linux.mechanisms import systemd_scope

    unit = systemd_scope.unit_of(f"probe-{controller}-of-{os.getpid()}")

    def attempt() -> str:
        path = systemd_scope.start(unit, (os.getpid(),), ())
        return PROBES[controller](replace(base, path=path))

    try:
        return disposable.observe(attempt)
    finally:
        systemd_scope.stop(unit)


@contextlib.contextmanager
def _started(
    base: cgroup.Base, controller: str, settings: Settings, act: Callable[[], int]
) -> Iterator[tuple[str, int]]:
    """Start a process that calls `act` in a new cgroup, a leaf, with `settings`.

    Yield the leaf's path and the process's pid.
    """
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
        yield leaf.path, pid
    finally:
        cgroup.remove(leaf.path)


def _inside(base: cgroup.Base, controller: str, settings: Settings, act: Callable[[], int]) -> int:
    with _started(base, controller, settings, act) as (_, pid):
        return os.waitpid(pid, 0)[1]


def _hog() -> int:
    space = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(space), 4096):
        space[at] = 1
    return 0


def _memory(base: cgroup.Base) -> str:
    limits = (("memory.max", str(16 * MIB)), ("memory.swap.max", "0"), ("memory.oom.group", "1"))
    killed = _inside(base, "memory", limits, _hog)
    free = _inside(base, "memory", (("memory.max", str(256 * MIB)),), _hog)
    if killed != 9 or free != 0:
        raise RuntimeError(
            "memory.max did not work: a process above the limit ended with wait status"
            f" {killed}, and a process below it with {free}"
        )
    return "a process with 64 MiB is killed at memory.max 16 MiB, but not at 256 MiB"


def _fork() -> int:
    try:
        disposable.fork_once()
    except OSError:
        return 1
    return 0


def _pids(base: cgroup.Base) -> str:
    denied = _inside(base, "pids", (("pids.max", "1"),), _fork)
    free = _inside(base, "pids", (("pids.max", "2"),), _fork)
    if denied != 1 << 8 or free != 0:
        raise RuntimeError(
            "pids.max did not work: a process that forked above the limit ended with wait status"
            f" {denied}, and one that forked below it with {free}"
        )
    return "a fork beyond pids.max is denied, but a fork below it is not"


def _spin() -> int:
    while True:
        pass


def _is_throttled(base: cgroup.Base, quota: str) -> bool:
    """Return whether the kernel throttles a process that is always busy under this quota.

    Wait until the kernel reports throttling, or until the process has used far more CPU time than
    MIN_QUOTA.
    """
    with _started(base, "cpu", (("cpu.max", f"{quota} {cgroup.PERIOD}"),), _spin) as (leaf, pid):
        seen: dict[str, int] = {}
        while not seen.get("nr_throttled") and seen.get("usage_usec", 0) < 100 * MIN_QUOTA:
            select.select((), (), (), PACE)
            seen = cgroup.table(f"{leaf}/cpu.stat")
        cgroup.write(f"{leaf}/cpu.max", "max")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return bool(seen.get("nr_throttled"))


def _cpu(base: cgroup.Base) -> str:
    if not _is_throttled(base, str(MIN_QUOTA)) or _is_throttled(base, "max"):
        raise RuntimeError("cpu.max did not throttle a busy process")
    return "a busy process is throttled under cpu.max, but not without it"


def _io(base: cgroup.Base) -> str:
    with _file_on_a_disk() as (file, disk):
        held = _is_held(base, file, disk, (("io.max", f"{disk} rbps={MIN_QUOTA}"),))
        free = _is_held(base, file, disk, ())
    if not held or free:
        text = "io.max did not delay a read, or a read also waited without io.max"
        raise RuntimeError(f"{text} (with io.max the read waited: {held}, without it: {free})")
    return "an uncached read waits under io.max, but not without it"


def _is_held(base: cgroup.Base, file: str, disk: str, settings: Settings) -> bool:
    """Return whether the kernel delays a read in a cgroup with these settings.

    The read counts as delayed if its process is seen waiting LOOKS times, and the kernel has not
    counted any bytes as read by then. The duration of the read is not used, because it proves
    little on a busy host.
    """
    with _started(base, "io", settings, lambda: _read(file)) as (leaf, pid):
        looks = 0
        while looks < LOOKS:
            select.select((), (), (), PACE)
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
                state = stat.read().rpartition(")")[2].split()[0]
            with open(f"{leaf}/io.stat", encoding="ascii") as counters:
                counted = re.findall(r"rbytes=([1-9])", counters.read())
            if state == "Z" or counted:
                break
            looks += state == "D"
        cgroup.write(f"{leaf}/io.max", f"{disk} rbps=max")
        if os.waitpid(pid, 0)[1]:
            raise RuntimeError(f"{file} cannot be read without the page cache")
    return looks == LOOKS


@contextlib.contextmanager
def _file_on_a_disk() -> Iterator[tuple[str, str]]:
    """Yield the path of a file to read, and the disk that it is on.

    This is the program of the Python interpreter, or a temporary file if that program is not on a
    disk.
    """
    program = os.path.realpath(sys.executable)
    if disk := block_devices.disk_of(program):
        yield program, disk
        return
    folder = directories().cache
    make_private_directory(folder)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="probe-") as made:
        disk = block_devices.disk_of(made.name)
        if not disk:
            raise RuntimeError(f"{NO_DISK} {program} or {folder}")
        made.write(os.urandom(MIB // 2))
        made.flush()
        os.fsync(made.fileno())
        yield made.name, disk


def _read(file: str) -> int:
    fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, MIB // 2)
    return 0 if os.preadv(fd, [buffer], 0) else 1


PROBES: dict[str, Callable[[cgroup.Base], str]] = {
    "memory": _memory,
    "pids": _pids,
    "cpu": _cpu,
    "io": _io,
}
