"""Report files that a server tries to create where it may only read.

These places are the directories of the server's own files, the read grants, and the directories
above a grant. For example, many programs save a file by writing a new file beside it, and the grant
of a single file does not allow that.
"""

from __future__ import annotations

import os
import sys

from corral.directories import directories, home_directory
from corral.paths.posix import is_inside
from corral.platforms.linux.mechanisms import landlock, root_filesystem
from corral.policy.secret_paths import CEILINGS, is_sensitive
from corral.safe_text import shell_word

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from corral.denials.records import Denials
    from corral.plan.model import Plan
    from corral.programs.model import Program

BYTECODE = "__pycache__"
"""Attempts to write bytecode are not reported, because Python ignores their failure."""
SYSTEM = ("//", "/usr/", "/etc/", "/bin/", "/sbin/", "/lib", "/dev/", "/proc/", "/sys/", "/nix/")
ELSEWHERE = (
    "read-only: set a variable or option of the server so that it writes to its HOME, "
    "which --state keeps between runs"
)
TOO_WIDE = "read-only: let the server use a directory of its own, which you can grant"


class OwnFiles:
    def __init__(self, plan: Plan, denials: Denials) -> None:
        self._program = plan.program
        wall = find_wall(plan)
        own, writes = plan.program.reads, _list_paths(wall, "write")
        grants = [*_list_paths(wall, "read"), *writes]
        grants = [one for one in grants if one not in own and not f"{one}/".startswith(SYSTEM)]
        self._reads = [path for path in grants if path not in writes]
        self._grants = grants
        self._writable = (*writes, *(wall.private if wall else ()))
        self._sees_host = isinstance(wall, landlock.Landlock)
        self._denials = denials

    def report(self, call: str, path: str) -> None:
        """Report a file or directory that the target tried to create where it may not write."""
        own = _find_top(path, (*self._program.reads, *self._reads))
        writable = _find_top(path, (top for top in self._writable if is_inside(top, own)))
        directory = os.path.dirname(path)
        is_beside = self._is_above_grant(directory)
        # In a private directory such as /tmp, corral makes the directories above a grant. The
        # target can write there too, but its files are lost, and cannot replace a granted file.
        is_lost = is_beside and directory != writable and writable not in self._grants
        if (not own and not is_beside) or (writable and not is_lost):
            return
        is_seen = bool(own) or self._sees_host or self._is_above_grant(path)
        is_directory = call.startswith("mkdir")
        if BYTECODE in path.split("/") or (is_directory and is_seen and os.path.lexists(path)):
            return
        if own in self._program.reads:
            allow, why = find_remedy(self._program, own, path, is_directory=is_directory)
            self._denials.add("own_files", path, allow=allow, why=why)
            return
        allow, why = _find_grant(path, directory)
        why = f"its {writable} is private" if writable and allow else why
        inner = [one for one in self._reads if os.path.dirname(one) == directory]
        if allow and inner and not os.path.lexists(path):
            # If the user kept these read grants inside the new write grant, their paths would stay
            # read-only, and the target could not replace the files there.
            why += f"; in place of `{' '.join(f'--read {shell_word(one)}' for one in inner)}`"
        self._denials.add("path", path, allow=allow, why=why)

    def _is_above_grant(self, path: str) -> bool:
        return any(is_inside(grant, path) for grant in self._grants)


def _find_top(path: str, tops: Iterable[str]) -> str:
    """Return the innermost of these directories and files that contains `path`, or ""."""
    return max((top for top in tops if is_inside(path, top)), key=len, default="")


def find_wall(plan: Plan) -> root_filesystem.View | landlock.Landlock | None:
    """Return the View or Landlock step, which decides which files the target sees."""
    walls = (root_filesystem.View, landlock.Landlock)
    return next((step for step in plan.steps if isinstance(step, walls)), None)


def _list_paths(
    wall: root_filesystem.View | landlock.Landlock | None, access: Literal["read", "write"]
) -> tuple[str, ...]:
    if isinstance(wall, landlock.Landlock):
        return wall.read if access == "read" else wall.write
    return tuple(bind.target for bind in wall.binds if bind.access == access) if wall else ()


def _find_grant(path: str, directory: str) -> tuple[str, str]:
    """Return (flag, reason) for a file that the server tried to create beside a grant, or in a read
    grant. The flag is "" if corral suggests no grant that allows it.
    """
    wanted = path if os.path.lexists(path) else directory
    if wanted in CEILINGS or _is_sensitive(wanted):
        return "", TOO_WIDE if wanted == directory else "read-only"
    return "" if _is_sensitive(path) else f"--write {shell_word(wanted)}", "read-only"


def find_remedy(program: Program, top: str, path: str, *, is_directory: bool) -> tuple[str, str]:
    """Return (flag, reason) for a file that the server tried to create among its own files.

    The flag is an option of corral that helps, or "" if no option does. The reason is the text that
    the report shows. For a server in one of the user's directories, the flag allows it to write
    this file. A package in corral's store must not be changed. For such a server, the flag names a
    profile that makes the server write to its HOME instead.
    """
    if any(is_inside(top, store) for store in (directories().cache, directories().state)):
        name = _find_profile(program)
        return (f"--profile {name}", "read-only") if name else ("", ELSEWHERE)
    if dict(zip(program.reads, program.why, strict=False)).get(top) != "the server's directory":
        return "", ELSEWHERE  # the directory belongs to a runtime such as Python, not to the server
    if os.path.isdir(os.path.dirname(path)) and not _is_sensitive(path):
        word = shell_word(path)
        make = "mkdir -p" if is_directory else "touch"
        first = "" if os.path.lexists(path) else f"; first `{make} {word}`"
        return f"--write {word}", f"read-only{first}"
    return "", ELSEWHERE


def _is_sensitive(path: str) -> bool:
    home = home_directory()
    return any(is_sensitive(one, home) for one in (path, os.path.realpath(path)))


def _find_profile(program: Program) -> str:
    """Return the name of a profile that makes this package write to its HOME, or ""."""
    try:
        from corral.policy import profiles

        found = profiles.fitting(program.server[0]) if program.server else None
    except (OSError, ImportError):
        return ""  # an update has replaced corral's own files, so the module cannot be read
    return found.name if found is not None and found.manifest.state else ""
