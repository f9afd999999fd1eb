"""Limit the whole process tree with cgroup v2. corral never uses v1.

Each run has its own cgroup, the leaf `corral/<id>`, in a cgroup that this user can write to. The
leaf cannot be below a cgroup that contains processes, because such a cgroup cannot enable
controllers for its children.

corral reads back every limit that it writes. It moves init into the leaf while init still waits for
its id maps, so the target is in the leaf from its first instruction.
"""

from __future__ import annotations

import errno
import os
import sys
import time

from corral.abi import linux as abi
from corral.paths.mounts import parse_mount
from corral.platforms import run_records
from corral.platforms.linux import init
from corral.platforms.steps import unverified
from corral.record import record, replace

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.plan.model import Held, Results, Stage, Step
    from corral.platforms.contract import Reaped
    from corral.platforms.linux.host_files import Layout
    from corral.policy.model import Limits

MECHANISM = "cgroup "
CONTROLLERS = ("memory", "pids", "cpu", "io")
PERIOD = 100_000
"""The period of cpu.max in microseconds. This is the kernel's own default."""
MAX_PERIOD, MIN_QUOTA = 1_000_000, 1000
"""The longest period and the lowest quota that the kernel accepts for cpu.max, in microseconds. A
share below a hundredth needs a period longer than PERIOD.
"""


@record
class Base:
    """A cgroup in which corral can create leaves.

    `controllers` lists the controllers that leaves get. If `manager` is true, the cgroup belongs
    to systemd, and systemd creates a scope for the leaf in it.
    """

    path: str
    controllers: tuple[str, ...]
    manager: bool = False


@record
class Cgroup:
    path: str

    def add_counts(self, reaped: Reaped) -> Reaped:
        """Return `reaped` with the CPU time, memory and tasks that the kernel has counted, and with
        the limits that were reached.

        Call this before the leaf is removed.
        """
        events = table(f"{self.path}/memory.events")
        hit = ["memory"] if events.get("oom_kill") or events.get("oom_group_kill") else []
        if table(f"{self.path}/pids.events").get("max"):
            hit.append("pids")
        cpu_usec = table(f"{self.path}/cpu.stat").get("usage_usec", 0)
        return replace(
            reaped,
            hit=(*hit, *reaped.hit),
            cpu=max(cpu_usec / 1e6, reaped.cpu),
            memory=_number(f"{self.path}/memory.peak") or reaped.memory,
            tasks=max(0, _number(f"{self.path}/pids.peak") - 1),
        )

    def release(self) -> None:
        remove(self.path)


@record
class Leaf:
    """Creates the leaf, which is the run's own cgroup.

    `settings` contains pairs (file, value) to write in the leaf. `controllers` are enabled in
    `base` and in the directory between `base` and the leaf.
    """

    name = "cgroup"
    base: str
    run: str
    controllers: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    stage: Stage = "supervisor"
    verify = unverified

    @property
    def path(self) -> str:
        return f"{self.base}/corral/{self.run}"

    @property
    def residue(self) -> str:
        return self.path

    def describe(self) -> str:
        values = ", ".join(f"{file} = {value}" for file, value in self.settings)
        return f"cgroup {self.path}: {values}"

    def apply(self, results: Results) -> None:
        group = f"{self.base}/corral"
        _enable(self.base, self.controllers)
        os.makedirs(group, exist_ok=True)
        _enable(group, self.controllers)
        os.mkdir(self.path)
        results.add(Cgroup(path=self.path))
        for file, value in self.settings:
            _set(f"{self.path}/{file}", value)


@record
class Enter:
    name = "enter_cgroup"
    stage: Stage = "after_clone"
    verify = unverified

    def describe(self) -> str:
        return "init joins the cgroup before anything else"

    def apply(self, results: Results) -> None:
        path = results.get(Cgroup).path
        write(f"{path}/cgroup.procs", str(results.get(init.InitProcess).pid))


def find() -> Base | None:
    """Return the best base directory for leaves, or None.

    The result of the first search is kept, because this process stays in its cgroup.
    """
    if not _found:
        _found.append(_find())
    return _found[0]


_found: list[Base | None] = []


def _find() -> Base | None:
    """Return the base directory with the most controllers. The candidates are this process's own
    cgroup, its parent, systemd's cgroup, and for root also the top of the hierarchy.
    """
    mounted = mount()
    if mounted is None:
        return None
    top, here = mounted
    above = os.path.dirname(here) if here != top else ""
    candidates = [top, above, here] if os.geteuid() == 0 else [above, here]
    usable = [base for path in candidates if path and (base := _base(path))]
    best = max(usable, key=lambda base: len(base.controllers), default=None)
    return _managed(top, best) or best


def _managed(top: str, best: Base | None) -> Base | None:
    """Return the cgroup of this user's systemd if it has more controllers than `best`.

    Otherwise return None. Also return None if systemd cannot be called.
    """
    uid = os.geteuid()
    path = f"{top}/user.slice/user-{uid}.slice/user@{uid}.service" if uid else top
    controllers = _find_controllers(path)
    if len(controllers) <= (len(best.controllers) if best else 0):
        return None
    from corral.platforms.linux.mechanisms import systemd_scope

    return (
        Base(path=path, controllers=controllers, manager=True) if systemd_scope.buses(uid) else None
    )


def mount(process: str = "self") -> tuple[str, str] | None:
    """Return the mount point of cgroup v2, and the directory of a process's cgroup below it.

    This also works if cgroup v1 is mounted beside v2.
    """
    mounts, own = abi.read_file("/proc/self/mountinfo"), abi.read_file(f"/proc/{process}/cgroup")
    found = locate(mounts, own)
    if found is None:
        return None
    point, here = found
    return point, here if os.path.isdir(here) else point


def locate(mountinfo: bytes, membership: bytes) -> tuple[str, str] | None:
    """Return (mount point, cgroup directory) of a process, from its mountinfo and cgroup files.

    A mount may show only a part of the hierarchy. Prefer a mount that shows the process's cgroup.
    If there is none, return the first mount point twice.
    """
    lines = [os.fsdecode(line) for line in mountinfo.splitlines() if b" - cgroup2 " in line]
    own = next((line[3:] for line in membership.splitlines() if line.startswith(b"0::")), b"/")
    found = [
        (point, _below(own.decode(errors="surrogateescape"), root))
        for point, _, root in map(parse_mount, lines)
    ]
    if not found:
        return None
    point, inside = next(((at, path) for at, path in found if path is not None), (found[0][0], "."))
    return point, os.path.normpath(os.path.join(point, inside or "."))


def _below(own: str, root: str) -> str | None:
    inside = os.path.relpath(own, root)
    return None if inside.split("/")[0] == ".." else inside


def _base(path: str) -> Base | None:
    if not (os.access(path, os.W_OK) and os.access(f"{path}/cgroup.procs", os.W_OK)):
        return None
    return Base(path=path, controllers=_find_controllers(path))


def _find_controllers(path: str) -> tuple[str, ...]:
    offered = _words(f"{path}/cgroup.controllers")
    return tuple(name for name in CONTROLLERS if name in offered)


def plan(limits: Limits, controls: Iterable[Held], layout: Layout) -> list[Step]:
    chosen = [item.control for item in controls if item.mechanism.startswith(MECHANISM)]
    if not chosen or layout.cgroup is None:
        return []
    leaf = Leaf(
        base=layout.cgroup.path,
        run=layout.run,
        controllers=tuple(chosen),
        settings=settings(limits, chosen, layout.disks),
    )
    if layout.cgroup.manager:
        from corral.platforms.linux.mechanisms import systemd_scope

        return [systemd_scope.plan(leaf)]
    return [leaf, Enter()]


def settings(
    limits: Limits, controllers: Iterable[str], disks: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    chosen = set(controllers)
    values: list[tuple[str, str]] = []
    if "memory" in chosen and limits.memory is not None:
        # Turn swap off, because memory.max does not limit swapped memory. Make the kernel
        # kill the whole group if memory runs out, because a server that has lost some of its
        # processes does not work.
        values += [("memory.max", str(limits.memory))]
        values += [("memory.swap.max", "0"), ("memory.oom.group", "1")]
    if "pids" in chosen and limits.pids is not None:
        values.append(("pids.max", str(limits.pids + 1)))  # one more, because init counts too
    if "cpu" in chosen and limits.cpu is not None:
        period = PERIOD if limits.cpu * PERIOD >= 1000 * MIN_QUOTA else MAX_PERIOD
        values.append(("cpu.max", f"{limits.cpu * period // 1000} {period}"))
    if "io" in chosen and limits.io is not None:
        values += [("io.max", f"{disk} rbps={limits.io} wbps={limits.io}") for disk in disks]
    return tuple(values)


def _enable(path: str, controllers: Iterable[str]) -> None:
    enabled = _words(f"{path}/cgroup.subtree_control")
    for name in controllers:
        if name not in enabled:
            write(f"{path}/cgroup.subtree_control", f"+{name}")


def _set(path: str, value: str) -> None:
    try:
        write(path, value)
    except FileNotFoundError:
        # A kernel without swap accounting does not have memory.swap.max.
        if path.endswith("/memory.swap.max"):
            return
        raise
    seen = _read(path)
    if not agrees(value, seen, os.sysconf("SC_PAGE_SIZE")):
        raise OSError(0, f"the value was set to {value!r}, but reads back as {seen!r}", path)


def agrees(value: str, seen: str, page: int) -> bool:
    """Return whether the content of a file (`seen`) matches the `value` that was written to the
    file.

    They may differ, because the kernel rounds sizes down to whole pages. The file io.max has a line
    for each disk. One of these lines has to match.
    """
    rounded = str(int(value) // page * page) if value.isdigit() else value
    lines = [set(line.split()) for line in seen.splitlines()]
    return any({value} == line or set(rounded.split()) <= line for line in lines)


def kill(path: str) -> None:
    try:
        write(f"{path}/cgroup.kill", "1")
    except OSError:
        # Before Linux 5.14 there is no such file. The process tree then ends when init ends.
        pass


def is_leaf(path: str) -> bool:
    """Return whether `path` is a cgroup that corral made for a run."""
    head, _, run = path.rpartition("/")
    if not (head.endswith("/corral") and run_records.is_run_name(run)):
        return False
    try:
        os.close(_open_cgroup(path))
    except OSError:
        return False
    return True


def _open_cgroup(path: str) -> int:
    """Open a cgroup's directory. Raise OSError if its path contains a symlink."""
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in path.removeprefix("/").split("/"):
        above = fd
        try:
            if name in ("", ".", ".."):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=above)
        finally:
            os.close(above)
    try:
        _check_cgroup(fd, path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _check_cgroup(fd: int, path: str) -> None:
    if abi.fstatfs_type(fd) != abi.CGROUP2_SUPER_MAGIC:
        raise OSError(0, "the path is not in the cgroup v2 file system", path)


def remove(path: str) -> None:
    """Kill the processes of a leaf and remove it. Retry while the kernel reports that the leaf is
    busy.
    """
    head, _, name = path.rpartition("/")
    try:
        above = _open_cgroup(head)
    except OSError:
        return
    try:
        kill(f"/proc/self/fd/{above}/{name}")
        removed = _remove_when_free(name, above)
    finally:
        os.close(above)
    if removed:
        _remove_around(path)


def _remove_when_free(name: str, above: int) -> bool:
    deadline = time.monotonic() + 5
    while True:
        try:
            os.rmdir(name, dir_fd=above)
            return True
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return False  # a later run removes the leaf
            time.sleep(0.001)


def _remove_around(path: str) -> None:
    """Remove the parent directory of a removed leaf if no other run uses it.

    If systemd made a scope for this run, end the scope.
    """
    group = os.path.dirname(path)
    try:
        os.rmdir(group)
    except OSError:
        pass  # the directory still contains the leaves of other runs
    scope = os.path.dirname(group)
    if os.path.basename(scope) == f"corral-{os.path.basename(path)}.scope":
        from corral.platforms.linux.mechanisms import systemd_scope

        systemd_scope.end(scope)


def write(path: str, text: str) -> None:
    """Write to a file in a cgroup.

    Raise OSError if the path is a symlink, or is not in the cgroup v2 file system.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _check_cgroup(fd, path)
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(fd)


def _read(path: str) -> str:
    try:
        return abi.read_file(path).decode()
    except FileNotFoundError:
        return ""


def _words(path: str) -> list[str]:
    return _read(path).split()


def _number(path: str) -> int:
    text = _read(path).strip()
    return int(text) if text.isdigit() else 0


def table(path: str) -> dict[str, int]:
    rows = [line.split() for line in _read(path).splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
