"""Restrict files, TCP, unix sockets and signals with Landlock, as far as the kernel supports it."""

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
# The files that the target may read in its own /proc directory. `net` and `task` are missing,
# because they show the host's sockets (`task` contains a `net` for each thread). Symlinks such as
# `exe` need no rule, because Landlock checks the file that a symlink leads to.
OWN_FILES = (
    "auxv", "cgroup", "cmdline", "comm", "environ", "fdinfo", "io", "limits", "maps", "mem",
    "mountinfo", "mounts", "oom_score", "oom_score_adj", "sched", "schedstat", "smaps",
    "smaps_rollup", "stat", "statm", "status",
)  # fmt: skip
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
MAKE_CHAR, MAKE_SOCK = 1 << 6, 1 << 9
# The right to connect to a unix socket by its path, since ABI 9. A Landlock domain consists of the
# processes that a ruleset restricts. Sockets that were made in the caller's domain need no rule.
RESOLVE_UNIX = 1 << 16
READ = EXECUTE | READ_FILE | READ_DIR
FILE_ONLY = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV | RESOLVE_UNIX
# ABI 1 has 13 rights. ABI 2 adds REFER, ABI 3 adds TRUNCATE, and ABI 5 adds IOCTL_DEV.
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
SIGNALS = 0b10  # ABI 6: denies signals to processes outside the domain
SCOPES = SIGNALS | 0b01  # ABI 6: also denies abstract unix sockets from outside the domain
TCP_RIGHTS = 0b11  # ABI 4: the rights to bind and to connect TCP sockets


@record
class Landlock:
    """Restricts which files, sockets and processes the target can reach.

    - The target may read and execute everything below `read`. Below `write` it may also change
      everything.
    - `private` is writable too. It is the only place where the target can make sockets, because a
      program on the host might trust a socket that it finds in `write`. The kernel does not let the
      target move a directory from `write` to `private`, because the move would add rights.
    - With `unix_scope` the target can connect only to its own unix sockets and to those in
      `sockets`.
    - If the target sees the host's /proc, `proc` says what it can read there: nothing, its own
      directory, or everything.
    - `seen` contains (path, device, inode) of granted files. The step fails if another file has
      taken one of these paths.
    - With `deny_tcp` the target cannot bind or connect TCP sockets, if this kernel's Landlock can
      deny that.
    - Since ABI 6, the target can send signals and connect to abstract unix sockets only inside its
      own domain.
    """

    name = "landlock"
    read: tuple[str, ...]
    write: tuple[str, ...]
    private: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    unix_scope: bool = False
    proc: Proc = "none"
    seen: tuple[tuple[str, int, int], ...] = ()
    deny_tcp: bool = False
    stage: Stage = "target"

    def describe(self) -> str:
        writable = ", ".join((*self.private, *self.write))
        text = f"landlock: read {', '.join(self.read)}; write {writable}"
        if self.unix_scope:
            text += f"; its own unix sockets{''.join(f', {path}' for path in self.sockets)}"
        if self.proc == "all":
            text += "; /proc, which lists the host's processes and their command lines"
        return text

    def apply(self, _results: Results) -> None:
        version = abi.landlock_abi()
        rights = RIGHTS[min(version, max(RIGHTS))]
        tcp = TCP_RIGHTS if self.deny_tcp and version >= 4 else 0
        handled = rights | (RESOLVE_UNIX if self.unix_scope else 0)
        attributes = struct.pack("=QQQ", handled, tcp, SCOPES if version >= 6 else 0)
        # A kernel can refuse a struct that is longer than the one it knows. So pass only the fields
        # that exist in the kernel's ABI version.
        size = 24 if version >= 6 else 16 if version >= 4 else 8
        ruleset = abi.landlock_create_ruleset(attributes[:size])
        try:
            seen = {path: (device, inode) for path, device, inode in self.seen}
            _add_rules(ruleset, self.read, READ & rights, seen)
            _add_rules(ruleset, self.write, rights & ~(IOCTL_DEV | MAKE_CHAR | MAKE_SOCK), seen)
            _add_rules(ruleset, self.private, rights & ~IOCTL_DEV)
            _add_rules(ruleset, self.devices, (READ_FILE | WRITE_FILE | IOCTL_DEV) & rights)
            if self.unix_scope:
                _add_rules(ruleset, self.sockets, RESOLVE_UNIX)
            if self.proc == "all":
                _add_rules(ruleset, ("/proc",), READ & rights)
            elif self.proc == "own":
                _add_rules(ruleset, (f"/proc/{os.getpid()}",), READ_DIR)
                _add_rules(ruleset, _proc_files(os.getpid()), READ_FILE | READ_DIR)
            abi.landlock_restrict_self(ruleset)
        finally:
            os.close(ruleset)

    def verify(self, _results: Results) -> None:
        """Check that the host's root directory cannot be listed.

        A sandbox with a private root has "/" in `read` and is not checked.
        """
        if "/" in self.read:
            return
        try:
            os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY))
        except PermissionError:
            return
        raise OSError(0, "the host's root can still be listed")


def scope_signals() -> None:
    """Confine the signals of this process and its future children: they can signal only each other.

    Raise OSError if this process can still send a signal to its parent.
    """
    parent = os.getppid()
    os.kill(parent, 0)
    ruleset = abi.landlock_create_ruleset(struct.pack("=QQQ", REFER, 0, SIGNALS))
    try:
        # Every ruleset denies moves and links from one directory to another (REFER) unless a rule
        # allows them.
        _add_rules(ruleset, ("/",), REFER)
        abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
        abi.landlock_restrict_self(ruleset)
    finally:
        os.close(ruleset)
    try:
        os.kill(parent, 0)
    except PermissionError:
        return
    raise OSError(0, "a signal to a process outside the domain is not denied")


def open_proc_files(pid: int) -> list[int]:
    """Open the files in /proc that have rules, so that the rules stay valid.

    A rule belongs to an inode. When memory is short, the kernel drops the inodes in /proc that no
    process has open. It later makes new inodes without the rules, and the target would lose access
    to its own directory. So the caller has to keep the files open until the target has ended.
    """
    return [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (f"/proc/{pid}", *_proc_files(pid))]


def _proc_files(pid: int) -> list[str]:
    """Return the files in /proc that get rules.

    The rules stay valid after exec, because a process keeps its directory in /proc.
    """
    own = [f"/proc/{pid}/{name}" for name in OWN_FILES]
    return [path for path in (*own, *PROC_FILES) if os.path.exists(path)]


def _add_rules(
    ruleset: int,
    paths: Sequence[str],
    access: int,
    seen: Mapping[str, tuple[int, int]] | None = None,
) -> None:
    """Add a rule for each path. Raise OSError if a path is no longer the file that was granted."""
    for path in paths:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            identity = (found.st_dev, found.st_ino)
            if seen and seen.get(path, identity) != identity:
                raise OSError(0, "this is no longer the file that was granted", path)
            allowed = access if stat.S_ISDIR(found.st_mode) else access & FILE_ONLY
            abi.landlock_add_path(ruleset, allowed, fd)
        finally:
            os.close(fd)
