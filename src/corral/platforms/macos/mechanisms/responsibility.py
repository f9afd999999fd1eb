"""Make macOS ask the user for consent in the target's own name.

Each process has a responsible process, usually the application that started it. If the user has
allowed that application to use the calendar, for example, every process below it may use the
calendar too. So `spawn` makes the target its own responsible process, and macOS asks the user again
on behalf of the target.
"""

from __future__ import annotations

from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.model import Results, Stage

IN_HOME = ("Desktop", "Documents", "Downloads", "Library/Mobile Documents")
"""Directories in the user's home that macOS protects like other volumes: it asks the user for
consent before a program reads them.
"""


@record
class Disclaimer:
    name = "disclaimer"
    stage: Stage = "clone"
    verify = unverified

    def describe(self) -> str:
        return "macOS asks the user for consent in the target's own name"

    def apply(self, results: Results) -> None:
        results.add(Disclaimed())


@record
class Disclaimed:
    """A result that tells `spawn` to make the target its own responsible process."""


def warnings(paths: Sequence[str], homes: Sequence[str], program: str) -> tuple[str, ...]:
    """Return a warning if macOS asks the user for consent before a process reads one of `paths`."""
    from corral.paths.posix import is_inside

    asked = ["/Volumes", *(f"{home}/{name}" for home in homes for name in IN_HOME)]
    found = next((path for path in paths if any(is_inside(path, top) for top in asked)), "")
    if not found:
        return ()
    text = (
        f"macOS asks the user before {program} may read {found}, but cannot ask over ssh: allow "
        "this in Privacy & Security, or set disclaim = false under [macos] to use the consents of "
        "the program that starts corral"
    )
    return (text,)
