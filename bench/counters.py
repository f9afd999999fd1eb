"""Count the resources that servers use, and the files that runs leave behind.

A sample is a mapping from the name of a counter to its value. A counter is left out if the user who
runs the script may not read it. All processes and files of the user in `Places` are counted, so
choose a user who runs nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import processes

TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
TICKS = os.sysconf("SC_CLK_TCK")
RSS, PSS, CPU = "RSS in MB", "PSS in MB", "CPU time in s"
DESCRIPTORS, THREADS, WAKE_UPS = "descriptors", "threads", "wake-ups"


@dataclasses.dataclass(frozen=True)
class Places:
    """A user whose processes and files are counted, and the directories that this user's corral
    uses.
    """

    uid: int
    home: str

    @property
    def cache(self) -> str:
        return os.path.join(self.home, ".cache", "corral")


def sample(found: Mapping[str, Sequence[int]], places: Places) -> dict[str, float]:
    """Return the counters of the host and of each role, such as `supervisor`. A role's counters are
    the sums over its processes.
    """
    counted: dict[str, float] = {}
    for role, pids in found.items():
        counted[f"{role}: processes"] = len(pids)
        for name, values in _of_processes(pids).items():
            counted[f"{role}: {name}"] = sum(values)
    return {**counted, **host(places)}


def _of_processes(pids: Iterable[int]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for pid in pids:
        for name, value in of_process(pid).items():
            found.setdefault(name, []).append(value)
    return found


def of_process(pid: int) -> dict[str, float]:
    """Return the counters of one process. PSS and descriptors are left out if they cannot
    be read.
    """
    tasks = os.listdir(f"/proc/{pid}/task")
    stat = processes.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    pages = int(processes.read(f"/proc/{pid}/statm").split()[1])
    found: dict[str, float] = {
        RSS: pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20),
        THREADS: len(tasks),
        WAKE_UPS: sum(processes.wake_ups(int(task)) for task in tasks),
        CPU: (int(stat[11]) + int(stat[12])) / TICKS,
    }
    with contextlib.suppress(PermissionError):
        found[DESCRIPTORS] = len(os.listdir(f"/proc/{pid}/fd"))
    size = processes.pss(pid)
    return found if size is None else {**found, PSS: size}


def host(places: Places) -> dict[str, float]:
    """Return the counters of the host: the user's files, keys, processes and cgroups, and all
    mounts.
    """
    files = [entry for entry in _walk(places.home) if entry.is_file(follow_symlinks=False)]
    return {
        "host: processes of the user": sum(1 for _ in _own_processes(places.uid)),
        "host: run records": len(_names(os.path.join(places.cache, "runs"))),
        "host: files of the user's corral": len(files),
        "host: KB of these files": sum(_size(entry) for entry in files) / 1024,
        "host: temporary files": sum(_own(path, places.uid) for path in TEMPORARY),
        "host: control groups": _control_groups(places.uid),
        "host: mounts": len(processes.read("/proc/self/mountinfo").splitlines()),
        "host: kernel keys": _keys(places.uid),
    }


def tree(pid: int) -> list[int]:
    """Return all descendants of a process, parents before their children."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in processes.read(f"/proc/{pid}/task/{task}/children").split():
                found += [int(child), *tree(int(child))]
    return found


def _own_processes(uid: int) -> Iterator[int]:
    """Yield the processes of a user.

    The uid is read from `status`, because root owns the /proc directory of a process that is not
    dumpable.
    """
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if processes.field(processes.read(f"/proc/{name}/status"), "Uid") == uid:
                    yield int(name)


def _control_groups(uid: int) -> int:
    mounts = [line.split(" ") for line in processes.read("/proc/self/mountinfo").splitlines()]
    tops = [words[4] for words in mounts if "cgroup2" in words]
    return sum(
        1 for top in tops for path, _, _ in os.walk(top) if "corral" in path and _owner(path) == uid
    )


def _keys(uid: int) -> int:
    """Return the number of kernel keys that count against the user's quota."""
    for line in processes.read("/proc/key-users").splitlines():
        user, _, rest = line.partition(":")
        if int(user) == uid:
            return int(rest.split()[1].split("/")[0])
    return 0


def _own(directory: str, uid: int) -> int:
    return sum(1 for name in _names(directory) if _owner(os.path.join(directory, name)) == uid)


def _owner(path: str) -> int | None:
    try:
        return os.lstat(path).st_uid
    except FileNotFoundError:
        return None


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def _walk(top: str) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError), os.scandir(top) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path)


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
