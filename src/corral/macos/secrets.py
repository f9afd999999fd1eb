"""Secrets and self-starting files inside granted directories of a Mac: hidden, or held read-only.

Seatbelt goes by names, so a name that does not exist yet is held as well, in its usual spelling: on
a volume that ignores case another one gets past, and is told afterwards. Not looked for: hard links
that were made before, and repositories below the top of a grant.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corral.policy import Grant

SECRETS = (
    ".ssh", ".aws", ".azure", ".config/gcloud", ".oci", ".kube", ".docker", ".gnupg",
    ".password-store", ".netrc", ".authinfo", ".npmrc", ".yarnrc.yml", ".pypirc",
    ".git-credentials", ".config/git/credentials", ".config/gh", ".config/glab-cli",
    ".terraform.d/credentials.tfrc.json", ".cargo/credentials", ".cargo/credentials.toml",
    ".gem/credentials", ".vault-token", ".config/rclone", ".config/doctl", ".fly", ".pgpass",
    ".my.cnf", ".config/sops", ".config/age", ".huggingface", ".cache/huggingface/token",
    ".config/op", ".1password", ".bitcoin", ".ethereum", ".config/solana",
    ".bash_history", ".zsh_history", ".zsh_sessions", ".python_history", ".node_repl_history",
    ".psql_history", ".mysql_history", ".sqlite_history", ".lesshst", ".viminfo",
    ".local/share/atuin", ".local/share/fish/fish_history",
    ".bashrc", ".bash_profile", ".bash_login", ".profile", ".zshrc", ".zprofile", ".zshenv",
    ".zlogin", ".config/zsh", ".config/fish",
    ".claude.json", ".claude", ".cursor", ".codeium", ".windsurf", ".gemini", ".codex",
    ".continue", ".copilot", ".config/github-copilot", ".config/zed", ".config/goose",
    ".config/opencode", ".local/share/opencode", ".lmstudio/mcp.json",
    "Library/Keychains", "Library/Cookies", "Library/Messages", "Library/Mail", "Library/Safari",
    "Library/Containers", "Library/Group Containers", "Library/Application Support",
    "Library/Caches", "Library/Preferences", "Library/Calendars", "Library/Accounts",
)  # fmt: skip
"""Below a home directory, in every grant. Browsers, clients and most applications keep theirs in
Application Support; corral's own directories are there, too.
"""

STARTERS = (
    ".gitconfig", ".config/git", ".local/bin", "bin", ".vimrc", ".vim", ".config/nvim", ".emacs",
    ".emacs.d", ".tmux.conf", ".config/tmux", ".lldbinit", ".config/direnv", ".config/pip",
    ".config/mise", ".inputrc", "Library/LaunchAgents", "Library/Services", "Library/Scripts",
    "Library/QuickLook", "Library/Input Methods", "Library/Python",
)  # fmt: skip
"""Below a home directory, in write grants: they run at login, or change what every program does."""

PROJECT = (
    ".vscode", ".idea", ".zed", ".fleet", ".devcontainer", ".devcontainer.json", ".mcp.json",
    ".cursor", ".claude", ".gemini", ".codex", ".continue", ".windsurf", ".roo", ".envrc",
    ".mise.toml", "mise.toml", ".exrc", ".nvimrc", ".nvim.lua", ".vimrc", ".dir-locals.el",
    ".husky", ".pre-commit-config.yaml", "lefthook.yml", ".lefthook.yml", ".lldbinit",
    ".git/hooks", ".git/config", ".git/config.worktree", ".git/commondir",
)  # fmt: skip
"""At the top of a write grant: opening it in an editor, entering it or committing runs them."""

ENVIRONMENT = (".env", ".env.local", ".env.production", ".env.development")


def hidden(grants: Sequence[Grant], home: str) -> tuple[str, ...]:
    """What no grant shows, unless a grant names it itself; one that lies in it is seen again."""
    named = [grant.path for grant in grants]
    found = [f"{home}/{name}" for name in SECRETS]
    found += [f"{grant.path}/{name}" for grant in grants for name in ENVIRONMENT if grant.directory]
    return _within(found, named, named)


def held(grants: Sequence[Grant], home: str) -> tuple[str, ...]:
    """What no write grant lets change, unless a grant names it itself."""
    writable = [grant.path for grant in grants if grant.access == "write"]
    found = [f"{home}/{name}" for name in STARTERS]
    found += [f"{path}/{name}" for path in writable for name in PROJECT]
    return _within(found, writable, [grant.path for grant in grants])


def _within(found: Sequence[str], tops: Sequence[str], named: Sequence[str]) -> tuple[str, ...]:
    """Those that lie in one of `tops` and are not named."""
    return tuple(
        path
        for path in dict.fromkeys(map(_resolved, found))
        if path not in named and any(_at(path, top) for top in tops)
    )


def anchors(grants: Sequence[Grant], kept: Sequence[str]) -> tuple[str, ...]:
    """Directories between a write grant and what is kept in it: renamed away, they would take it
    out of the rule for its name.
    """
    found: dict[str, None] = {}
    for grant in grants:
        if grant.access == "write":
            found.update(dict.fromkeys(_between(grant.path, kept)))
    return tuple(found)


def _between(top: str, kept: Sequence[str]) -> Iterator[str]:
    for path in kept:
        while (path := os.path.dirname(path)) and _at(path, top):
            yield path


def _resolved(path: str) -> str:
    """A link to a secret is another name: the rule has to be for where it leads."""
    return os.path.realpath(path)


def _at(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")
