"""Landlock: path rules on top of the mount view, or alone where there are no mount namespaces.

The rights that are handled follow the ABI that the running kernel reports for the call itself.
"""

from __future__ import annotations

import os
import stat
import struct
import sys

from corral.abi import linux as abi
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from corral.plan.model import Results, Stage

    Proc = Literal["none", "own", "all"]

PROC_FILES = (
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/filesystems",
    "/proc/uptime", "/proc/loadavg", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/cap_last_cap", "/proc/sys/kernel/random", "/proc/sys/kernel/ngroups_max",
)  # fmt: skip
# Of the target's own directory in /proc: not `net`, which shows the sockets of the host, nor
# `task`, which has a `net` for each thread. The links lead to what is judged by itself.
OWN_FILES = (
    "auxv", "cgroup", "cmdline", "comm", "environ", "fdinfo", "io", "limits", "maps", "mem",
    "mountinfo", "mounts", "oom_score", "oom_score_adj", "sched", "schedstat", "smaps",
    "smaps_rollup", "stat", "statm", "status",
)  # fmt: skip
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR
FILE_ONLY = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
# ABI 1 knows 13 rights; 2 adds REFER, 3 TRUNCATE, 5 IOCTL_DEV.
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
SCOPES = 0b11  # ABI 6: abstract unix sockets and signals stay inside


@record
class Landlock:
    """Everything below `read` may be read and executed, everything below `write` changed as well.

    `proc` is for hosts without a private /proc: the target's own directory, or all of it. `seen`
    has (path, device, inode) of what was granted: a path that leads elsewhere by now is refused.
    """

    name = "landlock"
    read: tuple[str, ...]
    write: tuple[str, ...]
    devices: tuple[str, ...] = ()
    proc: Proc = "none"
    seen: tuple[tuple[str, int, int], ...] = ()
    stage: Stage = "target"

    def describe(self) -> str:
        text = f"landlock: read {', '.join(self.read)}; write {', '.join(self.write)}"
        if self.proc == "all":
            text += "; /proc, which lists the host's processes and their command lines"
        return text

    def apply(self, _results: Results) -> None:
        version = abi.landlock_abi()
        rights = RIGHTS[min(version, max(RIGHTS))]
        attributes = struct.pack("=QQQ", rights, 0, SCOPES if version >= 6 else 0)
        # A kernel refuses a longer struct than it knows only if the rest is not zero; send what it
        # knows.
        size = 24 if version >= 6 else 16 if version >= 4 else 8
        ruleset = abi.landlock_create_ruleset(attributes[:size])
        try:
            seen = {path: (device, inode) for path, device, inode in self.seen}
            _add_rules(ruleset, self.read, READ & rights, seen)
            _add_rules(ruleset, self.write, rights & ~IOCTL_DEV, seen)
            _add_rules(ruleset, self.devices, (READ_FILE | WRITE_FILE | IOCTL_DEV) & rights)
            if self.proc == "all":
                _add_rules(ruleset, ("/proc",), READ & rights)
            elif self.proc == "own":
                _add_rules(ruleset, (f"/proc/{os.getpid()}",), READ_DIR)
                _add_rules(ruleset, _proc_files(os.getpid()), READ_FILE | READ_DIR)
            abi.landlock_restrict_self(ruleset)
        finally:
            os.close(ruleset)

    def verify(self, _results: Results) -> None:
        """Check that the root cannot be listed any more, where it is the host's."""
        if "/" in self.read:
            return
        try:
            os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY))
        except PermissionError:
            return
        raise OSError(0, "the host's root can still be listed")


def open_proc_files(pid: int) -> list[int]:
    """Open what keeps the rules for /proc alive, in the process that outlives the target.

    A rule belongs to an inode, and procfs makes another one for a name that was dropped from the
    cache: without these the target would lose its own directory when memory gets short.
    """
    return [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (f"/proc/{pid}", *_proc_files(pid))]


def _proc_files(pid: int) -> list[str]:
    """Return the files that rules are made for; a process keeps its directory through exec."""
    own = [f"/proc/{pid}/{name}" for name in OWN_FILES]
    return [path for path in (*own, *PROC_FILES) if os.path.exists(path)]


def _add_rules(
    ruleset: int,
    paths: Sequence[str],
    access: int,
    seen: Mapping[str, tuple[int, int]] | None = None,
) -> None:
    """Add a rule for each path, comparing what was granted by the descriptor of the rule itself."""
    for path in paths:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            identity = (found.st_dev, found.st_ino)
            if seen and seen.get(path, identity) != identity:
                raise OSError(0, "is no longer the file that was granted", path)
            allowed = access if stat.S_ISDIR(found.st_mode) else access & FILE_ONLY
            abi.landlock_add_path(ruleset, allowed, fd)
        finally:
            os.close(fd)
