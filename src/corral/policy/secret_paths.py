"""Find the paths of secret files in a home.

The table of their names is in another module, because `run` imports it before the target starts,
and must not have to import `functools` as well.
"""

import os
from functools import lru_cache


@lru_cache
def find_paths(home: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path of each name in a home, and its real path. The two differ if the home or an
    entry such as `~/.ssh` is a link, and a project can use either of them.
    """
    paths = [f"{home}/{name}" for name in names]
    real = [os.path.realpath(path).replace(os.sep, "/") for path in paths]
    return tuple(dict.fromkeys((*paths, *real)))
