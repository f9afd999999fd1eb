"""Find arguments and variables that name files on the host that the target cannot see."""

from __future__ import annotations

import os
import stat

from corral.paths.native import is_inside
from corral.safe_text import shell_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Literal

    from corral.plan.model import Ungranted

MAX_PATHS = 5
PATHS = ("/", "./", "../")
SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib", "/etc/", "/dev/", "/proc/", "/sys/")


def find_ungranted(
    words: Iterable[str], visible: Sequence[str], *, home: str, cwd: str
) -> tuple[Ungranted, ...]:
    """Return (kind of denial, path, flag) for each word that names a path outside of `visible`, the
    paths that the target can see.

    Leave out these words:

    - a path of the system, and the user's home or a directory above it
    - a missing path, if its parent directory does not exist or is shared by many programs, such as
      `/tmp`, because the word is then usually not meant as a path of the host
    - a relative path that does not begin with `./` or `../`, because it is usually a plain word

    The flag would allow the path. It is "" if the path may contain secrets, or if other programs
    execute the file. A project may have chosen the command, so corral must not suggest a dangerous
    grant.
    """
    found: dict[str, Ungranted] = {}
    for word in words:
        path = word.partition("=")[2] if word.startswith("-") else word
        if not path.startswith(PATHS) or len(found) >= MAX_PATHS:
            continue
        path = os.path.normpath(os.path.join(cwd, path))
        if path.startswith(SYSTEM):
            continue
        shown = any(path == top or path.startswith(f"{top}/") for top in visible)
        if shown or f"{home}/".startswith(f"{path.rstrip('/')}/"):
            continue
        try:
            found[path] = _describe(path, os.lstat(path).st_mode, home)
        except OSError:
            from corral.policy.secret_paths import CEILINGS

            parent = os.path.dirname(path)
            if parent not in CEILINGS and parent != home and os.path.isdir(parent):
                found[path] = ("path", path, _flag(path, parent, "write", home))
    return tuple(found.values())


def find_misplaced(
    words: Iterable[str], granted: Sequence[str], *, cwd: str, start_in: str, home: str
) -> Iterator[str]:
    """Yield a warning for each granted relative path that the target does not find, because the
    target starts in `start_in` and not in `cwd`.

    `home` is the user's home if the target starts in its private home, otherwise "". In the private
    home, the target sees each grant below the user's home at the same relative path.
    """
    for word in words:
        path = word.partition("=")[2] if word.startswith("-") else word
        if not path.startswith(("./", "../")):
            continue
        meant = os.path.normpath(os.path.join(cwd, path))
        found = os.path.normpath(os.path.join(home or start_in, path))
        if not os.path.lexists(meant) or not any(is_inside(meant, top) for top in granted):
            continue
        if found != meant and not any(is_inside(found, top) for top in granted):
            yield f"the server starts in {start_in} and does not find {path} there: write {meant}"


def _describe(path: str, mode: int, home: str) -> Ungranted:
    if stat.S_ISSOCK(mode):
        return "unix_socket", path, socket_flag(path)
    return "path", path, _flag(path, path, "read", home)


def _flag(path: str, granted: str, access: Literal["read", "write"], home: str) -> str:
    from corral.policy.secret_paths import is_sensitive

    paths = (path, granted, os.path.realpath(granted))
    if any(is_sensitive(one, home, access=access) for one in paths):
        return ""
    return f"--{access} {shell_word(granted)}"


def socket_flag(path: str) -> str:
    """Return the flag that would let a target connect to a unix socket on the host."""
    import json

    policy = {"version": 1, "filesystem": {"unix_sockets": [path]}}
    return f"--policy {shell_word(json.dumps(policy))}"
