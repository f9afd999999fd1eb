"""Secrets and self-starting files inside a tree that is to be granted. Pure.

An AppContainer cannot be shown a directory without one of its files: its part of the access check
looks for a package's and its capabilities' SIDs in entries that allow and not in those that deny
(Forshaw, Windows Security Internals, chapter 7, "Lowbox Tokens"), and taking an inherited
permission away means to rewrite the file's own list. So a grant that holds one of these is refused,
as where Linux has no namespaces. What is itself named as a grant is the user's word.
"""

from __future__ import annotations

from corral import sensitive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.windows.capabilities import Reach

HIDDEN = frozenset((
    *(name for name in (*sensitive.KEYS, *sensitive.TYPED) if "/" not in name),
    "_netrc", ".claude.json", "id_rsa", "id_ed25519", "id_ecdsa",
))  # fmt: skip
"""At any depth, in any grant."""

STARTING = frozenset(sensitive.PROJECT)
REPOSITORY = tuple(f".git\\{name}" for name in sensitive.GIT)
DEEPEST = 2


def find(names: Iterable[str], access: Reach) -> tuple[str, ...]:
    """Of the relative names of a tree, the outermost that must not be granted together with it."""
    found: list[str] = []
    for name in sorted(names, key=lambda name: (name.count("\\"), name)):
        if _is_secret(name, access) and not any(name.startswith(f"{one}\\") for one in found):
            found.append(name)
    return tuple(found)


def _is_secret(name: str, access: Reach) -> bool:
    lower = name.lower()
    last = lower.rpartition("\\")[2]
    depth = lower.count("\\")
    if last in HIDDEN or (depth < DEEPEST and _is_environment_file(last)):
        return True
    if access != "write" or depth > DEEPEST + 1:
        return False
    return last in STARTING or "\\".join(lower.split("\\")[-2:]) in REPOSITORY


def _is_environment_file(name: str) -> bool:
    return name == ".env" or (name.startswith(".env.") and not name.endswith(sensitive.PUBLISHED))
