"""Secrets and self-starting files inside a tree that is to be granted. Pure.

An AppContainer cannot be shown a directory without one of its files: its part of the access check
counts what lists allow, so an entry of ours that denies would not be heard, and taking an inherited
permission away means to rewrite the file's own list. So a grant that holds one of these is refused,
as where Linux has no namespaces. What is itself named as a grant is the user's word.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.windows.capabilities import Reach

HIDDEN = frozenset((
    ".ssh", ".aws", ".azure", ".kube", ".docker", ".gnupg", ".oci", ".password-store", ".netrc",
    "_netrc", ".npmrc", ".yarnrc.yml", ".pypirc", ".git-credentials", ".vault-token", ".pgpass",
    ".my.cnf", ".huggingface", ".bitcoin", ".ethereum", ".claude.json", ".bash_history",
    ".python_history", ".node_repl_history", "id_rsa", "id_ed25519", "id_ecdsa",
))  # fmt: skip
"""At any depth, in any grant."""

STARTING = frozenset((
    ".vscode", ".idea", ".zed", ".fleet", ".devcontainer", ".devcontainer.json", ".mcp.json",
    ".cursor", ".claude", ".gemini", ".codex", ".continue", ".windsurf", ".roo", ".envrc",
    ".husky", ".pre-commit-config.yaml", "lefthook.yml", ".lefthook.yml",
))  # fmt: skip
"""At the top of a project that may be written: opening or committing runs them."""

REPOSITORY = (".git\\hooks", ".git\\config", ".git\\config.worktree", ".git\\commondir")
PUBLISHED = (".example", ".sample", ".template", ".dist", ".defaults", ".schema")
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
    return name == ".env" or (name.startswith(".env.") and not name.endswith(PUBLISHED))
