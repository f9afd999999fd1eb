"""Read the mounts that this process sees from /proc/self/mountinfo, which only Linux has."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from typing import Literal

    Mounts = Mapping[str, tuple[str, str]]
    Kind = Literal["disk", "kernel", "network"]
    Kinds = Mapping[str, Kind]

KERNEL = frozenset((
    "proc", "sysfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "cpuset", "securityfs",
    "debugfs", "tracefs", "configfs", "bpf", "pstore", "efivarfs", "binfmt_misc", "fusectl",
    "hugetlbfs", "nsfs", "rpc_pipefs", "nfsd", "selinuxfs", "smackfs", "resctrl", "binder",
    "functionfs", "xenfs",
))  # fmt: skip
NETWORK = frozenset((
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "9p", "virtiofs", "coda",
    "lustre", "gfs2", "ocfs2", "beegfs", "orangefs", "glusterfs", "davfs", "autofs", "vboxsf",
))  # fmt: skip
ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


def parse_mount(line: str) -> tuple[str, str, str]:
    """Return the fields of a line of mountinfo: the mount point, the device, and the directory on
    the device that is mounted there.
    """
    _, _, device, root, point, *_ = line.split(" ")
    return _unescape(point), device, _unescape(root)


def _unescape(text: str) -> str:
    for code, letter in ESCAPES:
        text = text.replace(code, letter)
    return text


def _read_lines() -> list[str]:
    if sys.platform != "linux":
        return []
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return list(file)
    except OSError:
        return []


def _file_system(line: str) -> str:
    return line.partition(" - ")[2].split(" ")[0]


def read_mounts() -> Mounts:
    """Return {mount point: (device, directory on the device)}. If a mount point has several mounts,
    the last one counts, because it covers the others.
    """
    found = map(parse_mount, _read_lines())
    return {point: (device, root) for point, device, root in found}


def read_kinds() -> Kinds:
    """Return where the files of each mount point come from: "kernel", "network" or "disk"."""
    return {parse_mount(line)[0]: _kind(_file_system(line)) for line in _read_lines()}


def find_file_system(path: str) -> str:
    """Return the type of the file system at a path, or "" if it is not known."""
    types = {parse_mount(line)[0]: _file_system(line) for line in _read_lines()}
    return types.get(find_point(path, types), "")


def find_kind(path: str, kinds: Kinds) -> Kind:
    return kinds.get(find_point(path, kinds), "disk")


def find_point(path: str, points: Container[str]) -> str:
    """Return the innermost of `points` that contains a path, or "/"."""
    while path not in points and (parent := os.path.dirname(path)) != path:
        path = parent
    return path


def _kind(file_system: str) -> Kind:
    if file_system in KERNEL:
        return "kernel"
    # FUSE counts as a network file system, because a program serves the files. Most such programs
    # use a network, and any user can start one that never answers.
    if file_system in NETWORK or file_system.partition(".")[0] == "fuse":
        return "network"
    return "disk"


def on_disk(path: str, mounts: Mounts) -> tuple[str, str]:
    """Return the device of a path, and the path on that device. The device is "" if `mounts` has no
    mount point above the path.
    """
    point = find_point(path, mounts)
    device, root = mounts.get(point, ("", ""))
    return device, f"{root.rstrip('/')}/{path[len(point) :].lstrip('/')}".rstrip("/")
