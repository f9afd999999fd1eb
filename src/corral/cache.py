"""Findings of this boot, so that `run` pays nothing for the probes.

The key names everything that can change an answer: boot, user, corral, kernel, namespaces, security
label, filters and sysctls. A different key is a different file; a file that does not carry the
whole key is not read. The directory is private and can never be granted to a target.
"""

from __future__ import annotations

import os
import sys

from corral.host import Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.host import Status

VERSION = "0.1.0"
FIELD, LINE = "\t", "\n"
COLUMNS = 4
FILES = (
    "/proc/sys/kernel/random/boot_id",
    "/proc/self/attr/current",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "/proc/sys/kernel/seccomp/actions_avail",
)
PROBES = (
    "linux/probes.py", "linux/cgroup_probes.py", "linux/landlock_probes.py",
    "linux/network_probes.py", "linux/systemd.py",
)  # fmt: skip
NAMESPACES = ("user", "mnt", "pid", "net")


def load() -> tuple[Finding, ...] | None:
    key = _key()
    try:
        with open(_path(key), encoding="utf-8") as file:
            stored, _, rest = file.read().partition(LINE)
    except OSError:
        return None
    if stored != key:
        return None
    rows = [line.split(FIELD) for line in rest.split(LINE) if line]
    if not rows or any(len(row) != COLUMNS for row in rows):
        return None  # half written, or not by us
    return tuple(
        Finding(capability=name, status=_status(status), evidence=evidence, hint=hint)
        for name, status, evidence, hint in rows
    )


def _status(text: str) -> Status:
    return "proven" if text == "proven" else "absent"


def store(findings: Iterable[Finding]) -> None:
    """A cache that cannot be written costs the next run its probes, nothing else."""
    key = _key()
    rows = [(item.capability, item.status, item.evidence, item.hint) for item in findings]
    lines = [FIELD.join(_flat(cell) for cell in row) for row in rows]
    path = _path(key)
    fresh = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(fresh, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(LINE.join((key, *lines, "")))
        os.replace(fresh, path)
    except OSError:
        return


def _flat(text: str) -> str:
    return text.replace(FIELD, " ").replace(LINE, "; ")


def _key() -> str:
    if sys.platform == "win32":
        return FIELD.join((VERSION, os.environ.get("COMPUTERNAME", "")))
    parts = [VERSION, str(os.geteuid()), *os.uname()]
    parts += [_read(path) for path in FILES]
    parts += [_link(f"/proc/self/ns/{name}") for name in NAMESPACES]
    parts += [_cgroup_base(), *map(_age, PROBES)]
    parts += [line for line in _read("/proc/self/status").split(LINE) if line.startswith(STATUS)]
    return FIELD.join(_flat(part) for part in parts).replace(FIELD, "|")


STATUS = ("Seccomp", "NoNewPrivs", "CapEff", "CapBnd")


def _age(name: str) -> str:
    """Other probes may come to other answers, also between releases."""
    try:
        return str(os.stat(os.path.join(os.path.dirname(__file__), name)).st_mtime_ns)
    except OSError:
        return ""


def _cgroup_base() -> str:
    """Delegation differs from one session to the next of the same user."""
    if sys.platform != "linux":
        return ""
    from corral.linux import cgroup

    base = cgroup.find()
    return "" if base is None else " ".join((base.path, *base.controllers))


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


def _path(key: str) -> str:
    from corral.directories import directories

    name = (
        f"{sum(key.encode()):x}-{len(key)}"  # only has to differ now and then: the key is compared
    )
    return os.path.join(directories().cache, "findings", name)
