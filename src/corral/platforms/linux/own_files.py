"""Report files that a server tries to create where it may only read.

These places are the directories of the server's own files, and the read grants.
"""

from __future__ import annotations

import os
import sys

from corral.directories import directories, home_directory
from corral.paths.posix import is_inside
from corral.platforms.linux.mechanisms import landlock, root_filesystem
from corral.policy.secret_paths import is_sensitive
from corral.safe_text import shell_word

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable

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


class OwnFiles:
    def __init__(self, plan: Plan, denials: Denials) -> None:
        self._program = plan.program
        self._writable = tuple(find_writable(plan))
        self._granted = tuple(find_read_grants(plan))
        self._denials = denials

    def report(self, call: str, path: str) -> None:
        """Report a file or directory that the target tried to create where it may not write."""
        tops = [top for top in (*self._program.reads, *self._granted) if is_inside(path, top)]
        own = max(tops, key=len, default="")
        if not own or BYTECODE in path.split("/"):
            return
        if any(is_inside(path, top) and is_inside(top, own) for top in self._writable):
            return
        is_directory = call.startswith("mkdir")
        if is_directory and os.path.lexists(path):
            return
        if own not in self._program.reads:
            wanted = path if os.path.lexists(path) else os.path.dirname(path)
            refused = any(map(_is_sensitive, (path, wanted)))
            allow = "" if refused else f"--write {shell_word(wanted)}"
            self._denials.add("path", path, allow=allow, why="read-only")
            return
        allow, why = find_remedy(self._program, own, path, is_directory=is_directory)
        self._denials.add("own_files", path, allow=allow, why=why)


def find_writable(plan: Plan) -> Iterable[str]:
    for step in plan.steps:
        if isinstance(step, landlock.Landlock):
            yield from (*step.write, *step.private)
        elif isinstance(step, root_filesystem.View):
            yield from step.private
            yield from (bind.target for bind in step.binds if bind.access == "write")


def find_read_grants(plan: Plan) -> Iterable[str]:
    for step in plan.steps:
        paths: Iterable[str] = ()
        if isinstance(step, landlock.Landlock):
            paths = step.read
        elif isinstance(step, root_filesystem.View):
            paths = [bind.target for bind in step.binds if bind.access == "read"]
        for path in paths:
            if path not in plan.program.reads and not f"{path}/".startswith(SYSTEM):
                yield path


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
