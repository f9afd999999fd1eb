"""Landlock on top of the mount view: should a mount flag ever be got around, the path rules still
hold.

The rights that are handled follow the ABI that the running kernel reports for the call itself.
"""

from __future__ import annotations

import os
import struct
import sys

from corral.abi import linux as abi
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from corral.plan import Place
    from corral.posix.enter import Scene

    Proc = Literal["none", "own", "all"]

PROC_FILES = (
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/filesystems",
    "/proc/uptime", "/proc/loadavg", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/cap_last_cap", "/proc/sys/kernel/random", "/proc/sys/kernel/ngroups_max",
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

    read: tuple[str, ...]
    write: tuple[str, ...]
    devices: tuple[str, ...] = ()
    proc: Proc = "none"
    seen: tuple[tuple[str, int, int], ...] = ()
    place: Place = "target"

    def describe(self) -> str:
        return f"landlock: read {', '.join(self.read)}; write {', '.join(self.write)}"


def handled(version: int) -> int:
    return RIGHTS[min(version, max(RIGHTS))]


def apply(step: Landlock, _scene: Scene) -> None:
    version = abi.landlock_abi()
    rights = handled(version)
    attributes = struct.pack("=QQQ", rights, 0, SCOPES if version >= 6 else 0)
    # A kernel refuses a longer struct than it knows only if the rest is not zero; send what it
    # knows.
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = abi.landlock_create_ruleset(attributes[:size])
    try:
        _compare(step.seen)
        _add(ruleset, step.read, READ & rights)
        _add(ruleset, step.write, rights & ~IOCTL_DEV)
        _add(ruleset, step.devices, (READ_FILE | WRITE_FILE | IOCTL_DEV) & rights)
        _add(ruleset, _proc(step.proc), READ & rights)
        abi.landlock_restrict_self(ruleset)
    finally:
        os.close(ruleset)


def verify(step: Landlock, _scene: Scene) -> None:
    """Where the root is the host's, it cannot be listed any more."""
    if "/" in step.read:
        return
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY))
    except PermissionError:
        return
    raise OSError(0, "the host's root can still be listed")


def _proc(wanted: Proc) -> tuple[str, ...]:
    """The rule is for the directory that this process has now, and keeps through exec."""
    if wanted == "own":
        files = [path for path in PROC_FILES if os.path.exists(path)]
        return (f"/proc/{os.getpid()}", *files)
    return ("/proc",) if wanted == "all" else ()


def _compare(seen: Sequence[tuple[str, int, int]]) -> None:
    for path, device, inode in seen:
        found = os.stat(path)
        if (found.st_dev, found.st_ino) != (device, inode):
            raise OSError(0, "is no longer the file that was granted", path)


def _add(ruleset: int, paths: Sequence[str], access: int) -> None:
    for path in paths:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            allowed = access if os.path.isdir(path) else access & FILE_ONLY
            abi.landlock_add_path(ruleset, allowed, fd)
        finally:
            os.close(fd)
