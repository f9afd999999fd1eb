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
ROAMING, LOCAL = "AppData\\Roaming", "AppData\\Local"
HIDDEN_AT_HOME = (
    *(name for name in (*sensitive.KEYS, *sensitive.TYPED, *sensitive.CLIENTS) if "/" in name),
    # What browsers remember, what Windows keeps for the user, which servers clients start.
    f"{LOCAL}\\Google\\Chrome", f"{LOCAL}\\Microsoft\\Edge",
    f"{LOCAL}\\BraveSoftware\\Brave-Browser",
    f"{ROAMING}\\Mozilla\\Firefox", f"{ROAMING}\\Opera Software\\Opera Stable",
    f"{ROAMING}\\Microsoft\\Credentials", f"{ROAMING}\\Microsoft\\Protect",
    f"{ROAMING}\\Microsoft\\Vault", f"{LOCAL}\\Microsoft\\Credentials",
    f"{LOCAL}\\Microsoft\\Vault", f"{ROAMING}\\Microsoft\\Windows\\PowerShell",
    f"{ROAMING}\\Code\\User", f"{ROAMING}\\Code - Insiders\\User", f"{ROAMING}\\Cursor\\User",
    f"{ROAMING}\\Windsurf\\User",
)  # fmt: skip
"""Below a profile, deeper than its own directory, which no grant holds."""
STARTING_AT_HOME = (
    *(name for name in sensitive.STARTERS if "/" in name),
    f"{ROAMING}\\Microsoft\\Windows\\Start Menu", "Documents\\PowerShell",
    "Documents\\WindowsPowerShell", "OneDrive\\Documents\\PowerShell",
    "OneDrive\\Documents\\WindowsPowerShell",
)  # fmt: skip


def find(names: Iterable[str], access: Reach, place: str = "") -> tuple[str, ...]:
    """Of the relative names of a tree, the outermost that must not be granted together with it.

    `place` is where the tree lies in the user's profile; empty if elsewhere.
    """
    known = _relative(HIDDEN_AT_HOME, place)
    known |= _relative(STARTING_AT_HOME, place) if access == "write" else frozenset()
    found: list[str] = []
    for name in sorted(names, key=lambda name: (name.count("\\"), name)):
        secret = name.lower() in known or _is_secret(name, access)
        if secret and not any(name.startswith(f"{one}\\") for one in found):
            found.append(name)
    return tuple(found)


def absent(names: Iterable[str], place: str = "") -> tuple[str, ...]:
    """What would start by itself in a tree that may be written, and does not exist yet."""
    there = {name.lower() for name in names}
    wanted = (*sorted(STARTING), *REPOSITORY, *sorted(_relative(STARTING_AT_HOME, place)))
    return tuple(name for name in wanted if name not in there)


def _relative(at_home: Iterable[str], place: str) -> frozenset[str]:
    """Names below a profile as names below a directory in it, in lower case."""
    if not place:
        return frozenset()
    below = f"{place}\\".lower()
    paths = [name.replace("/", "\\").lower() for name in at_home]
    return frozenset(path.removeprefix(below) for path in paths if path.startswith(below))


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
