"""The symbolic links that are followed on the way to a file."""

import os
import sys

MAX_LINKS = 40
"""As many as Linux follows before it reports a loop."""


def find_links(path: str) -> tuple[str, ...]:
    """Return the place of each link that an absolute path leads through, in order.

    No part of a returned path is a link itself, except the last. On Windows there are none.
    """
    if sys.platform == "win32":
        return ()
    found: list[str] = []
    here, rest = "/", path.split("/")[::-1]
    while rest and len(found) < MAX_LINKS:
        name = rest.pop()
        if name in {"", "."}:
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        at = os.path.join(here, name)
        try:
            target = os.readlink(at)
        except OSError:
            here = at
            continue
        found.append(at)
        here = "/" if target.startswith("/") else here
        rest += target.split("/")[::-1]
    return tuple(found)
