"""Decide whether a path belongs to a secret or to a file that other programs run.

The names of these files are in a table in another module, `secret_files`, because a run needs only
that table before the target starts, and should not have to import this code too.
"""

from __future__ import annotations

import os
from functools import lru_cache

from corral.policy.secret_files import (
    BARE,
    DATA,
    GIT,
    PROJECT,
    RUN_AT_START,
    RUN_BY_SYSTEM,
    VERSION_CONTROL,
    hidden,
    hidden_anywhere,
    is_environment_file,
    protected,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from corral.policy.secret_files import Column

CEILINGS = frozenset(
    (
        "/", "/home", "/root", "/tmp", "/var/tmp", "/etc", "/usr", "/opt", "/srv", "/mnt",  # noqa: S108
        "/media", "/var", "/var/cache", "/var/lib", "/var/spool",
    )
)  # fmt: skip
"""Directories that contain too much of the host for a grant that corral suggests."""


@lru_cache
def find_paths(home: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path of each name in a home directory, and its real path. The two differ if the
    home or a directory such as `~/.ssh` is a link. Both are needed, because a path that corral
    checks can be written in either way.
    """
    paths = [f"{home}/{name}" for name in names]
    real = [os.path.realpath(path).replace(os.sep, "/") for path in paths]
    return tuple(dict.fromkeys((*paths, *real)))


def is_sensitive(
    path: str, home: str, system: Column = "linux", *, access: Literal["read", "write"] = "write"
) -> bool:
    """Return whether a grant of this path would include a known secret or, for `write`, a file that
    other programs run.

    corral never suggests a grant of such a path. Otherwise a hostile target or project could make
    corral suggest it to the user.
    """
    anywhere, tops = hidden_anywhere(system), find_paths(home, hidden(system))
    if access == "write":
        anywhere = (*VERSION_CONTROL, *PROJECT, *anywhere)
        tops = (*tops, *RUN_BY_SYSTEM, *find_paths(home, protected(system)))
    inside, name = f"{path}/", path.rpartition("/")[2]
    if is_environment_file(name) or any(f"/{one}/" in inside for one in anywhere):
        return True
    if any(inside.startswith(f"{top}/") or f"{top}/".startswith(inside) for top in tops):
        return True
    if access == "read":
        return False
    homes = (home, os.path.realpath(home).replace(os.sep, "/"))
    return any(is_anothers(path, one) for one in homes) or is_git_hook(path)


def is_anothers(path: str, home: str) -> bool:
    """Return whether a path is a hidden file of a home, or inside a hidden directory. Other
    programs keep their settings there, which often name programs to run.

    If the hidden file or directory does not exist, return true only for names such as
    `.pythonrc.py`, which programs look for when they start.
    """
    below = path.removeprefix(f"{home}/")
    if below == path or not below.startswith(".") or below.startswith(DATA):
        return False
    parts = below.split("/")
    entry = "/".join((home, *parts[: 2 if parts[0] == ".config" else 1]))
    name = parts[-1].lower()
    return (
        os.path.lexists(entry)
        or name.endswith(RUN_AT_START)
        or (name.rpartition(".")[0].endswith(RUN_AT_START))
    )


def is_git_hook(path: str) -> bool:
    """Return whether a path is a setting or a hook of a bare Git repository. The repository is
    recognized by the files in it, because its directory can have any name.
    """
    above, name = os.path.split(path)
    for directory, last in ((above, name), os.path.split(above)):
        if last in GIT and all(os.path.lexists(f"{directory}/{one}") for one in BARE):
            return True
    return False
