"""The key under which findings are cached: what can change what a probe sees on this host (boot,
user, kernel, namespaces, security label, filters, sysctls, delegation).
"""

from __future__ import annotations

import os
import sys

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
        _delegation(),
        *(line for line in status if line.startswith(STATUS)),
        _outer_filter(status),
    )


def _outer_filter(status: list[str]) -> str:
    """Return how an outer filter answers: two filters are told apart by nothing else."""
    if "Seccomp:\t2" not in status:
        return ""
    from corral.platforms.linux import outer_filter

    return outer_filter.answers()


def _delegation() -> str:
    """Return the cgroup base, which differs between sessions of the same user."""
    found = cgroup.find()
    return "" if found is None else " ".join((found.path, *found.controllers))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\0\n")
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
