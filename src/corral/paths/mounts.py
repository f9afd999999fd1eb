"""The mounts that this process sees, from /proc/self/mountinfo (proc(5)); none but on Linux."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    Mounts = Mapping[str, tuple[str, str]]

ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


def parse_mount(line: str) -> tuple[str, str, str]:
    """Return mount point, device, and the directory of the file system that is mounted there."""
    _, _, device, root, point, *_ = line.split(" ")
    return _unescape(point), device, _unescape(root)


def _unescape(text: str) -> str:
    for code, letter in ESCAPES:
        text = text.replace(code, letter)
    return text


def read_mounts() -> Mounts:
    """Return device and directory by mount point. A later mount covers an earlier one."""
    if sys.platform != "linux":
        return {}
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            found = [parse_mount(line) for line in file]
    except OSError:
        return {}
    return {point: (device, root) for point, device, root in found}


def on_disk(path: str, mounts: Mounts) -> tuple[str, str]:
    """Return the device of a path, and the path on it; both empty where no mount is known."""
    point = path
    while point not in mounts and (parent := os.path.dirname(point)) != point:
        point = parent
    device, root = mounts.get(point, ("", ""))
    return device, f"{root.rstrip('/')}/{path[len(point) :].lstrip('/')}".rstrip("/")
