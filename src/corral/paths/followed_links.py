"""Find the symbolic links through which a path goes."""

import os
import sys

MAX_LINKS = 40  # Linux follows this many links before it reports a loop


def follow(path: str) -> tuple[list[str], str]:
    """Return the path of each link that an absolute path goes through, and the final path.

    The final path need not exist; it is "" if the links form a loop. In each returned
    path only the last name can be a link. On Windows no links are looked up.
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
        try:
            text = os.readlink(here)
        except OSError:
            done = here
            continue
        links.append(here)
        if len(links) > MAX_LINKS:
            return links, ""
        done = "" if text.startswith("/") else done
        left += text.split("/")[::-1]
    return links, done or "/"
