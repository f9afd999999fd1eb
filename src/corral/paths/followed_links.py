"""Find the symlinks that a path goes through."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LINKS = 40  # Linux reports a loop after more links than this


def read_link(path: str) -> str:
    """Return the target of a symlink, or "" if the path is not a symlink."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def follow(path: str, read_link: Callable[[str], str] = read_link) -> tuple[list[str], str]:
    """Return the symlinks that an absolute path goes through, and the path to which it leads.

    In the path of each returned symlink, the directories above it are already resolved, so they are
    not symlinks. The final path does not have to exist. It is "" if the symlinks form a loop. On
    Windows, do not look for symlinks, and return the path itself.
    """
    if sys.platform == "win32":
        return [], path
    links: list[str] = []
    done = ""
    left = path.split("/")[::-1]
    while left:
        name = left.pop()
        if name in {"", "."}:
            continue
        if name == "..":
            done = done.rpartition("/")[0]
            continue
        here = f"{done}/{name}"
        text = read_link(here)
        if not text:
            done = here
            continue
        links.append(here)
        if len(links) > MAX_LINKS:
            return links, ""
        done = "" if text.startswith("/") else done
        left += text.split("/")[::-1]
    return links, done or "/"
