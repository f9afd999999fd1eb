"""Find the paths of a watched run that corral must not look up on the host.

The target chooses these paths. If a network or FUSE file system does not answer, a lookup on it
never returns. An automounter (`/net/HOST`) contacts any host that a path names. So corral
reports paths on such file systems without a lookup, unless the run or the user's home uses the file
system anyway.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from corral.paths.followed_links import follow
from corral.paths.mounts import find_point

if TYPE_CHECKING:
    from corral.paths.mounts import Kinds

WHY = "on a network file system, where corral does not look up a server's paths"

MAX_CHARACTERS = 4 << 20
"""The maximum total number of characters of `RemotePaths._plain`. A target can ask for paths with
so many parts that storing every directory above them would take gigabytes.
"""


class _ReachedError(Exception):
    """Raised when a path leads to a network file system."""


class RemotePaths:
    """The paths on network file systems. File systems that contain a path in `used` are left out,
    because corral uses them anyway.
    """

    def __init__(self, kinds: Kinds, used: Iterable[str]) -> None:
        self._kinds = kinds
        points = {find_point(path, kinds) for path in used}
        self._remote = {
            point for point, kind in kinds.items() if kind == "network" and point not in points
        }
        self._is_root_remote = "/" in self._remote
        self._plain: set[str] = set()
        """Paths that were looked up and are not links."""
        self._left = MAX_CHARACTERS
        self._missing = "//"

    def contains(self, path: str) -> bool:
        """Return whether a lookup of `path` would reach a network file system, directly or through
        a link.
        """
        if not self._remote:
            return False
        try:
            follow(path, self._read_link)
        except _ReachedError:
            return True
        return False

    def _read_link(self, path: str) -> str:
        """Return the target of a link, or "" if the path is not a link. Raise an error at the mount
        point of a network file system.

        `follow` calls this method for each directory on the way to a path, from the top down, so it
        is enough to check whether `path` itself is a mount point.
        """
        if path in self._remote or (self._is_root_remote and self._is_below_root(path)):
            raise _ReachedError
        if path in self._plain or path.startswith(self._missing):
            return ""
        try:
            return os.readlink(path)
        except (FileNotFoundError, NotADirectoryError):
            # Nothing can exist below a path that is missing or a file, so do not look there.
            self._missing = f"{path}/"
        except OSError:
            pass
        if len(path) <= self._left:
            self._left -= len(path)
            self._plain.add(path)
        return ""

    def _is_below_root(self, path: str) -> bool:
        return path.rfind("/") == 0 and path not in self._kinds
