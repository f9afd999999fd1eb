"""Find the paths of a watched run that corral must not look up on the host.

The target chooses these paths. On a network or FUSE file system that does not answer, a lookup
never ends. An automounter (`/net/HOST`) contacts any host that a path names. So paths on such file
systems are only listed, unless the run or the user's home uses the file system anyway.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from corral.paths.mounts import find_point

if TYPE_CHECKING:
    from corral.paths.mounts import Kinds

MAX_LINKS = 40
WHY = "on a network file system, where corral looks up nothing that a server asks for"


class RemotePaths:
    """The paths on network file systems, except on those file systems that the paths in `used` are
    on.
    """

    def __init__(self, kinds: Kinds, used: Iterable[str]) -> None:
        self._kinds = kinds
        points = {find_point(path, kinds) for path in used}
        self._remote = {
            point for point, kind in kinds.items() if kind == "network" and point not in points
        }
        self._plain: set[str] = set()
        """Paths that were looked up and are not links."""

    def contains(self, path: str) -> bool:
        """Return whether a lookup of `path` would reach a network file system, directly or through
        a link.
        """
        if not self._remote:
            return False
        links = 0
        done, left = "", path.split("/")[::-1]
        while left:
            name = left.pop()
            if name in {"", "."}:
                continue
            if name == "..":
                done = done.rpartition("/")[0]
                continue
            here = f"{done}/{name}"
            if find_point(here, self._kinds) in self._remote:
                return True
            text = self._read_link(here)
            if not text:
                done = here
                continue
            links += 1
            if links > MAX_LINKS:
                return False  # the kernel follows no more links either
            done = "" if text.startswith("/") else done
            left += text.split("/")[::-1]
        return False

    def _read_link(self, path: str) -> str:
        """Return the path that a link contains, or "" for anything but a link."""
        if path in self._plain:
            return ""
        try:
            return os.readlink(path)
        except OSError:
            self._plain.add(path)
            return ""
