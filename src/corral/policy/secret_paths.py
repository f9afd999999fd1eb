"""Find the paths of secret files in a home. This module is apart from the table of their names,
because `run` reads the table before the target starts, and needs no cache.
"""

import os
from functools import lru_cache


@lru_cache
def find_paths(home: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path of each name in a home, and the path to which it leads. The home itself or an
    entry such as `~/.ssh` may be a link, and a project can name the other end of this link.
    """
    paths = [f"{home}/{name}" for name in names]
    real = [os.path.realpath(path).replace(os.sep, "/") for path in paths]
    return tuple(dict.fromkeys((*paths, *real)))
