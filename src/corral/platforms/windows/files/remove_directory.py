"""Directories that a target could write, taken away whatever it made of them.

Names that Windows trims or gives another meaning (`x.`, `nul`), files that are marked read-only,
directories within directories without end: none of these may keep a run's private space on the
disk, or the run's end from coming. A link is removed, what it leads to stays.
"""

from __future__ import annotations

import os

from corral.paths.links import is_directory
from corral.platforms.windows.files import granted_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 1000
"""Characters of a path beyond which a directory is moved up: Windows takes no more than 32767, and
looks at every name on the way.
"""


def remove(path: str) -> None:
    """With everything below. What resists stays, and is for the next sweep."""
    top = granted_tree.reaching(path)
    directories = [top]
    for here in directories:
        for name in _names(here):
            below = os.path.join(here, name)
            if _is_directory(below):
                directories.append(below if len(below) < LONGEST else _raised(below, top))
            else:
                _attempt(os.unlink, below)
    for here in reversed(directories):
        _attempt(os.rmdir, here)


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _is_directory(path: str) -> bool:
    try:
        return is_directory(os.lstat(path))
    except OSError:
        return False


def _raised(path: str, top: str) -> str:
    fresh = os.path.join(top, os.urandom(8).hex())
    try:
        os.rename(path, fresh)
    except OSError:
        return path
    return fresh


def _attempt(act: Callable[[str], None], path: str) -> None:
    """Once more after it was marked writable, which removing asks for."""
    try:
        act(path)
    except OSError:
        try:
            os.chmod(path, 0o700)
            act(path)
        except OSError:
            pass
