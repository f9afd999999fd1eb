"""Find the paths in granted directories that stay hidden or read-only on macOS.

Seatbelt compares paths with the rules, so it also protects files that do not exist yet. But on a
volume that ignores case, a target can create such a file under a different spelling. corral reports
this after the run. For `.env` files and repositories, the profile itself has rules that apply at
any depth. If a hard link to a secret was in a grant before the run, corral does not find it, and
the target can read the secret through it.
"""

from __future__ import annotations

import os

from corral.paths.posix import is_inside
from corral.policy import secret_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corral.policy.model import Grant

SECRETS = secret_files.hidden("macos")
STARTERS = secret_files.protected("macos")
PROJECT = (*secret_files.PROJECT, *secret_files.VERSION_CONTROL)
"""Names at the top of a write grant that the target must not change. Repositories are included,
because the profile's own rules do not protect a `.git` that is a symlink.
"""


def hidden(grants: Sequence[Grant], *homes: str) -> tuple[str, ...]:
    """Return the paths of secrets in granted directories, which stay hidden.

    Leave out a secret if the policy grants its own path.
    """
    named = [grant.path for grant in grants]
    found = [f"{home}/{name}" for home in homes for name in SECRETS]
    # Seatbelt compares real paths, so if a secret's path contains symlinks, resolve them.
    return _within(map(os.path.realpath, found), named, named)


def held(grants: Sequence[Grant], *homes: str) -> tuple[str, ...]:
    """Return the paths in write grants that the target must not change."""
    writable = [grant.path for grant in grants if grant.access == "write" and grant.directory]
    found = [f"{home}/{name}" for home in homes for name in STARTERS]
    found += [f"{path}/{name}" for path in writable for name in PROJECT]
    named = [path for path in writable if os.path.basename(path) in secret_files.VERSION_CONTROL]
    found += [f"{path}/{name}" for path in named for name in secret_files.GIT]
    kept = [_replaceable(path, writable) for path in found]
    kept += [real for path in found if (real := os.path.realpath(path)) != path]
    return _within(kept, writable, [grant.path for grant in grants])


def _replaceable(path: str, tops: Sequence[str]) -> str:
    """Return the path that the target must not change, so that it cannot replace `path`.

    `tops` are the writable directories. The result is `path` itself if all its parents below a
    writable directory are directories too. Otherwise it is the topmost parent that is missing, a
    file or a symlink, because the target could create or replace that parent.
    """
    whole = path
    while (parent := os.path.dirname(path)) != path and parent not in tops:
        path = parent
        if os.path.islink(path) or not os.path.isdir(path):
            whole = path
    return whole


def _within(found: Iterable[str], tops: Sequence[str], named: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        path
        for path in dict.fromkeys(found)
        if path not in named and any(is_inside(path, top) for top in tops)
    )


def anchors(grants: Sequence[Grant], kept: Sequence[str]) -> tuple[str, ...]:
    """Return the directories above the paths `kept`, up to and including the write grant.

    The paths `kept` must stay hidden or unchanged. So the target must not rename any directory
    above them, because the paths would change, and the rules for them would no longer match.
    """
    found: dict[str, None] = {}
    for top in [grant.path for grant in grants if grant.access == "write"]:
        for path in kept:
            while (path := os.path.dirname(path)) and is_inside(path, top):
                found[path] = None
    return tuple(found)
