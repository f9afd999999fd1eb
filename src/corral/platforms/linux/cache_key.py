"""Build the key under which the results of the probes are cached. It contains everything that can
change a probe's result.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.platforms.linux.mechanisms import cgroup

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

FILES = (
    "/proc/sys/kernel/random/boot_id",
    "/proc/self/attr/current",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "/proc/sys/kernel/seccomp/actions_avail",
    "/proc/sys/kernel/yama/ptrace_scope",
)
NAMESPACES = ("user", "mnt", "pid", "net")
STATUS = ("Seccomp", "NoNewPrivs", "CapEff", "CapBnd")


def cache_key() -> tuple[str, ...]:
    status = _read("/proc/self/status").split("\n")
    return (
        str(os.geteuid()),
        *os.uname(),
        *(_read(path) for path in FILES),
        *(_link(f"/proc/self/ns/{name}") for name in NAMESPACES),
        _root(),
        _delegation(),
        *(line for line in status if line.startswith(STATUS)),
        _outer_filter(status),
    )


def _outer_filter(status: list[str]) -> str:
    """Return how a seccomp filter around corral answers system calls, or "" if there is no filter.

    The kernel does not show the content of a filter, so corral tries system calls and records the
    answers. If they differ from the cached answers, the filter has changed, and the probes must run
    again.
    """
    if "Seccomp:\t2" not in status:
        return ""
    from corral.platforms.linux import outer_filter

    return outer_filter.answers()


def _root() -> str:
    """Return the ids of the root directory, of its mount and of the parent mount.

    The kernel refuses user namespaces in a chroot, but allows them after pivot_root. The root
    directory can be the same in both cases, but the parent mount differs.
    """
    lines = [line.split(" ", 5) for line in _read("/proc/self/mountinfo").split("\n")]
    mounts = [f"{words[0]} {words[1]}" for words in lines if words[4:5] == ["/"]]
    seen = os.stat("/")
    return " ".join((str(seen.st_dev), str(seen.st_ino), *mounts[-1:]))


def _delegation() -> str:
    """Return the path of the directory for corral's cgroups, and its controllers.

    Both can differ between two sessions of the same user.
    """
    found = cgroup.find()
    return "" if found is None else " ".join((found.path, *found.controllers))


def _read(path: str) -> str:
    try:
        return abi.read_file(path).decode(errors="replace").rstrip("\0\n")
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
