"""Names that hold secrets or run by themselves, the same on every system.

Each system adds its own, and has its own way to keep a target from them.
"""

KEYS = (
    ".ssh", ".aws", ".azure", ".config/gcloud", ".oci", ".kube", ".docker", ".config/containers",
    ".gnupg", ".password-store", ".netrc", ".authinfo", ".authinfo.gpg", ".npmrc", ".yarnrc.yml",
    ".pypirc", ".git-credentials", ".config/git/credentials", ".config/gh", ".config/glab-cli",
    ".config/hub", ".terraform.d/credentials.tfrc.json", ".cargo/credentials",
    ".cargo/credentials.toml", ".gem/credentials", ".vault-token", ".config/rclone",
    ".config/doctl", ".fly", ".config/heroku", ".pgpass", ".my.cnf", ".config/sops",
    ".config/age", ".huggingface", ".cache/huggingface/token", ".config/op", ".1password",
    ".bitcoin", ".ethereum", ".config/solana", ".electrum",
)  # fmt: skip
"""Below a home directory: what logs in somewhere."""

TYPED = (
    ".bash_history", ".zsh_history", ".histfile", ".python_history", ".node_repl_history",
    ".psql_history", ".mysql_history", ".sqlite_history", ".lesshst", ".viminfo",
    ".local/share/atuin", ".local/share/fish/fish_history", ".local/state/python_history",
)  # fmt: skip
"""Below a home directory: what was typed."""

SHELLS = (
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile",
    ".zshrc", ".zprofile", ".zshenv", ".zlogin", ".zlogout", ".config/zsh", ".config/fish",
)  # fmt: skip
"""Below a home directory: what shells run, with the tokens that people put there."""

CLIENTS = (
    ".claude.json", ".claude", ".cursor", ".codeium", ".windsurf", ".gemini", ".codex",
    ".continue", ".cline", ".copilot", ".config/github-copilot", ".config/zed", ".config/goose",
    ".config/opencode", ".local/share/opencode", ".lmstudio/mcp.json",
)  # fmt: skip
"""Below a home directory: which servers MCP clients start, and with which tokens."""

STARTERS = (
    ".gitconfig", ".config/git", ".local/bin", "bin", ".vimrc", ".vim", ".config/nvim", ".emacs",
    ".emacs.d", ".config/emacs", ".tmux.conf", ".config/tmux", ".gdbinit", ".config/gdb",
    ".lldbinit", ".config/direnv", ".config/pip", ".config/mise", ".inputrc",
)  # fmt: skip
"""Below a home directory: they run at login, or change what every program of the user does."""

PROJECT = (
    ".vscode", ".idea", ".zed", ".fleet", ".devcontainer", ".devcontainer.json", ".mcp.json",
    ".cursor", ".claude", ".gemini", ".codex", ".continue", ".windsurf", ".roo", ".envrc",
    ".mise.toml", "mise.toml", ".exrc", ".nvimrc", ".nvim.lua", ".vimrc", ".dir-locals.el",
    ".husky", ".pre-commit-config.yaml", "lefthook.yml", ".lefthook.yml", ".gdbinit", ".lldbinit",
)  # fmt: skip
"""At the top of a project: opening it in an editor, entering it or committing runs them."""

GIT = ("hooks", "config", "config.worktree", "commondir")
"""In a repository's own directory: they run, or say what runs."""

PUBLISHED = (".example", ".sample", ".template", ".dist", ".defaults", ".schema")
"""`.env.example` and its like are published on purpose."""
