"""Secrets and self-starting files inside granted directories of a Mac: hidden, or held read-only.

Seatbelt goes by names, so a name that does not exist yet is held as well, in its usual spelling: on
a volume that ignores case another one gets past, and is told afterwards. Not looked for: hard links
that were made before, and repositories below the top of a grant.
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
"""At the top of a write grant."""

ENVIRONMENT = ".env"
"""At the top of a grant, with all that begins so and is not published."""


def hidden(grants: Sequence[Grant], *homes: str) -> tuple[str, ...]:
    """What no grant shows, unless a grant names it itself; one that lies in it is seen again."""
    named = [grant.path for grant in grants]
    found = [f"{home}/{name}" for home in homes for name in SECRETS]
    for grant in grants:
        if grant.directory:
            found += [f"{grant.path}/{name}" for name in _environment_files(grant.path)]
    # A link to a secret is another name: the rule has to be for where it leads.
    return _within(map(os.path.realpath, found), named, named)


def _environment_files(directory: str) -> list[str]:
    try:
        names = os.listdir(directory)
    except OSError:
        names = []
    return [ENVIRONMENT, *filter(secret_files.is_environment_file, names)]


def held(grants: Sequence[Grant], *homes: str) -> tuple[str, ...]:
    """What no write grant lets change, unless a grant names it itself."""
    writable = [grant.path for grant in grants if grant.access == "write" and grant.directory]
    found = [f"{home}/{name}" for home in homes for name in STARTERS]
    found += [f"{path}/{name}" for path in writable for name in PROJECT]
    named = [path for path in writable if os.path.basename(path) in secret_files.VERSION_CONTROL]
    found += [f"{path}/{name}" for path in named for name in secret_files.GIT]
    kept = [_replaceable(path, writable) for path in found]
    kept += [real for path in found if (real := os.path.realpath(path)) != path]
    return _within(kept, writable, [grant.path for grant in grants])


def _replaceable(path: str, tops: Sequence[str]) -> str:
    """The first on the way to it that is no directory of its own. A `.git` that is absent could be
    put there whole, by one rename; one that is a file or a link could be made to lead elsewhere.
    """
    whole = path
    while (parent := os.path.dirname(path)) != path and parent not in tops:
        path = parent
        if os.path.islink(path) or not os.path.isdir(path):
            whole = path
    return whole


def _within(found: Iterable[str], tops: Sequence[str], named: Sequence[str]) -> tuple[str, ...]:
    """Those that lie in one of `tops` and are not named."""
    return tuple(
        path
        for path in dict.fromkeys(found)
        if path not in named and any(is_inside(path, top) for top in tops)
    )


def anchors(grants: Sequence[Grant], kept: Sequence[str]) -> tuple[str, ...]:
    """Return the directories between a write grant and what is kept in it: renaming them would
    take it out of the rule for its name.
    """
    found: dict[str, None] = {}
    for top in [grant.path for grant in grants if grant.access == "write"]:
        for path in kept:
            while (path := os.path.dirname(path)) and is_inside(path, top):
                found[path] = None
    return tuple(found)
