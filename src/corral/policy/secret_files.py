"""Define the single table of files that contain secrets or are run automatically.

All code that protects such files uses this table. Some paths apply to all systems, others to only
one. All are relative to a home directory and use "/" on every system. CONFIG at the start of a path
stands for the directory where programs keep their settings. CLAUDE and CODEX stand for these two
clients' directories, which the user can move with an environment variable.
"""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Column = Literal["linux", "macos", "windows"]

LOCAL, ROAMING = "AppData/Local", "AppData/Roaming"
CONFIG = {"linux": ".config", "macos": "Library/Application Support", "windows": ROAMING}
IN_CODE = "CONFIG/Code/User/globalStorage"  # VS Code's extensions keep their files here
MOVABLE = {"CLAUDE": "", "CODEX": ".codex"}


@record
class Names:
    """Paths of one kind, such as keys. Some exist on every system, others on only one system."""

    everywhere: tuple[str, ...] = ()
    linux: tuple[str, ...] = ()
    macos: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()

    def on(self, system: Column) -> tuple[str, ...]:
        own: tuple[str, ...] = getattr(self, system)
        return tuple(expand(name, system) for name in (*self.everywhere, *own))


@record
class Client:
    """An MCP client, and the files with its servers' settings, which often contain tokens.

    `linux`, `macos` and `windows` each replace `files` on one system. `project` lists files in a
    project's directory, where `*` stands for any names, also of directories. A test checks that
    every file is in CLIENT_DIRECTORIES, and every project file in PROJECT.
    """

    name: str
    title: str
    files: tuple[str, ...] = ()
    linux: tuple[str, ...] = ()
    macos: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    project: tuple[str, ...] = ()

    def files_on(self, system: Column) -> tuple[str, ...]:
        """Return the client's files on this system, with placeholders such as CONFIG."""
        own: tuple[str, ...] = getattr(self, system)
        return own or self.files


def _client(name: str, title: str, file: str) -> Client:
    """Return a client that reads a file at the same relative path in the home directory and in each
    project.
    """
    return Client(name=name, title=title, files=(file,), project=(file,))


def _each(directory: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{directory}/{name}" for name in names)


KEYS = Names(
    everywhere=(
        ".ssh", ".aws", ".azure", ".config/gcloud", ".oci", ".kube", ".docker",
        ".config/containers", ".gnupg", ".password-store", ".netrc", ".authinfo", ".authinfo.gpg",
        ".npmrc", ".yarnrc.yml", ".pypirc", ".git-credentials", ".config/git/credentials",
        ".config/gh", ".config/glab-cli", ".config/hub", ".terraform.d/credentials.tfrc.json",
        ".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials", ".vault-token",
        ".config/rclone", ".config/doctl", ".fly", ".config/heroku", ".pgpass", ".my.cnf",
        ".config/sops", ".config/age", ".huggingface", ".cache/huggingface/token", ".config/op",
        ".1password", ".bitcoin", ".ethereum", ".config/solana", ".electrum", "id_rsa",
        "id_ed25519", "id_ecdsa", "CONFIG/1Password", "CONFIG/Bitwarden", "CONFIG/Bitwarden CLI",
        "CONFIG/keepassxc", "CONFIG/Exodus",
    ),
    linux=(".local/share/keyrings", ".local/share/kwalletd", ".pki"),
    macos=(".config/1Password", "Library/Keychains", "Library/Accounts"),
    windows=(
        "_netrc", f"{ROAMING}/Microsoft/Credentials", f"{ROAMING}/Microsoft/Protect",
        f"{ROAMING}/Microsoft/Vault", f"{LOCAL}/Microsoft/Credentials",
        f"{LOCAL}/Microsoft/Vault", f"{ROAMING}/gcloud", f"{ROAMING}/gnupg",
        f"{ROAMING}/GitHub CLI", f"{ROAMING}/glab-cli", f"{LOCAL}/glab-cli", f"{ROAMING}/rclone",
        f"{ROAMING}/doctl", f"{LOCAL}/heroku", f"{ROAMING}/postgresql", f"{ROAMING}/sops",
        f"{ROAMING}/terraform.d/credentials.tfrc.json", f"{LOCAL}/1Password",
        f"{LOCAL}/KeePassXC", f"{ROAMING}/Bitcoin", f"{LOCAL}/Bitcoin", f"{ROAMING}/Ethereum",
        f"{LOCAL}/Ethereum", f"{ROAMING}/Electrum",
    ),
)  # fmt: skip
"""Credentials. On Windows a name without a directory matches at any depth in a grant."""

HISTORY = Names(
    everywhere=(
        ".bash_history", ".zsh_history", ".histfile", ".python_history", ".node_repl_history",
        ".psql_history", ".mysql_history", ".sqlite_history", ".lesshst", ".viminfo",
        ".local/share/atuin", ".local/share/fish/fish_history", ".local/state/python_history",
    ),
    macos=(".zsh_sessions",),
    windows=(f"{ROAMING}/Microsoft/Windows/PowerShell",),
)  # fmt: skip
"""Command histories. On Windows a name without a directory matches at any depth in a grant."""

SHELLS = Names(
    everywhere=(
        ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile",
        ".zshrc", ".zprofile", ".zshenv", ".zlogin", ".zlogout", ".config/zsh", ".config/fish",
    ),
)  # fmt: skip
"""Files that shells run. People often put tokens into them."""

BROWSERS = Names(
    everywhere=(".mozilla", "CONFIG/Signal", "CONFIG/Slack", "CONFIG/discord"),
    linux=(
        ".config/mozilla", ".config/google-chrome", ".config/chromium",
        ".config/microsoft-edge", ".config/BraveSoftware", ".config/vivaldi", ".config/opera",
        ".librewolf", ".zen", ".thunderbird", ".local/share/TelegramDesktop", "snap/firefox",
        "snap/chromium", "snap/thunderbird", "snap/brave",
    ),
    macos=(
        "Library/Cookies", "Library/Messages", "Library/Mail", "Library/Safari",
        "Library/Calendars", "Library/Thunderbird",
    ),
    windows=(
        f"{LOCAL}/Google/Chrome", f"{LOCAL}/Chromium", f"{LOCAL}/Microsoft/Edge",
        f"{LOCAL}/BraveSoftware/Brave-Browser", f"{LOCAL}/Vivaldi", f"{ROAMING}/Mozilla/Firefox",
        f"{ROAMING}/Opera Software/Opera Stable", f"{ROAMING}/librewolf", f"{ROAMING}/zen",
        f"{ROAMING}/Thunderbird", f"{ROAMING}/Telegram Desktop",
    ),
)  # fmt: skip
"""Profiles of browsers, mail programs and messengers."""

APPLICATIONS = Names(
    linux=(".var/app",),
    macos=(
        "Library/Containers", "Library/Group Containers", "Library/Application Support",
        "Library/Caches", "Library/Preferences",
    ),
)  # fmt: skip
"""Directories with the data of all kinds of applications. Programs are installed in them, too."""

CLIENTS = (
    Client(
        name="claude-desktop", title="Claude Desktop",
        files=("CONFIG/Claude/claude_desktop_config.json",),
    ),
    Client(
        name="claude-code", title="Claude Code", files=("CLAUDE/.claude.json",),
        project=(".mcp.json",),
    ),
    _client("cursor", "Cursor", ".cursor/mcp.json"),
    Client(
        name="vscode", title="VS Code", project=(".vscode/mcp.json",),
        files=("CONFIG/Code/User/mcp.json", "CONFIG/Code/User/settings.json"),
    ),
    Client(name="windsurf", title="Windsurf", files=(".codeium/windsurf/mcp_config.json",)),
    Client(
        name="zed", title="Zed", project=(".zed/settings.json",),
        linux=("CONFIG/zed/settings.json",), macos=(".config/zed/settings.json",),
        windows=("CONFIG/Zed/settings.json",),
    ),
    Client(
        name="gemini", title="Gemini CLI", files=(".gemini/settings.json",),
        project=(".gemini/settings.json", ".gemini/extensions/*gemini-extension.json"),
    ),
    Client(
        name="codex", title="Codex", files=("CODEX/config.toml",),
        project=(".codex/config.toml",),
    ),
    Client(
        name="cline", title="Cline",
        files=(
            ".cline/data/settings/cline_mcp_settings.json",
            f"{IN_CODE}/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        ),
    ),
    Client(
        name="continue", title="Continue", files=(".continue/config.yaml",),
        project=(".continuerc.json", *_each(".continue", "*.json", "*.yaml", "*.yml")),
    ),
    Client(
        name="goose", title="Goose",
        linux=("CONFIG/goose/config.yaml",), macos=(".config/goose/config.yaml",),
        windows=("CONFIG/Block/goose/config/config.yaml",),
    ),
    Client(
        name="opencode", title="opencode",
        files=_each(".config/opencode", "opencode.json", "opencode.jsonc", "config.json"),
        linux=_each("CONFIG/opencode", "opencode.json", "opencode.jsonc", "config.json"),
        project=(
            "opencode.json", "opencode.jsonc", ".opencode/opencode.json",
            ".opencode/opencode.jsonc",
        ),
    ),
    Client(
        name="copilot", title="Copilot CLI", files=(".copilot/mcp-config.json",),
        project=(".mcp.json", ".github/mcp.json"),
    ),
    Client(
        name="copilot-jetbrains", title="Copilot in JetBrains IDEs",
        files=(".config/github-copilot/intellij/mcp.json",),
        macos=(
            ".config/github-copilot/intellij/mcp.json", "CONFIG/github-copilot/intellij/mcp.json",
        ),
        windows=(f"{LOCAL}/github-copilot/intellij/mcp.json",),
    ),
    _client("junie", "JetBrains Junie", ".junie/mcp/mcp.json"),
    Client(
        name="qwen", title="Qwen Code", files=(".qwen/settings.json",),
        project=(
            ".qwen/settings.json", ".qwen/settings.local.json",
            ".qwen/extensions/*qwen-extension.json", ".mcp.json",
        ),
    ),
    Client(
        name="kilo", title="Kilo Code",
        files=(
            *_each(".config/kilo", "kilo.jsonc", "kilo.json"),
            ".kilocode/cli/global/settings/mcp_settings.json",
            f"{IN_CODE}/kilocode.kilo-code/settings/mcp_settings.json",
        ),
        project=(
            "kilo.json", "kilo.jsonc", ".kilo/kilo.json", ".kilo/kilo.jsonc", ".kilocode/mcp.json",
        ),
    ),
    Client(
        name="roo", title="Roo Code", project=(".roo/mcp.json",),
        files=(f"{IN_CODE}/rooveterinaryinc.roo-cline/settings/mcp_settings.json",),
    ),
    Client(
        name="amp", title="Amp", files=_each(".config/amp", "settings.json", "settings.jsonc"),
        project=(".amp/settings.json", ".amp/settings.jsonc"),
    ),
    _client("droid", "Factory droid", ".factory/mcp.json"),
    Client(
        name="crush", title="Crush", files=(".config/crush/crush.json", ".config/crush/crushrc"),
        windows=(f"{LOCAL}/crush/crush.json", ".config/crush/crushrc"),
        project=("crush.json", ".crush.json", ".crush/crush.json", "crushrc", ".crushrc"),
    ),
    Client(
        name="lmstudio", title="LM Studio",
        files=(".lmstudio/mcp.json", ".cache/lm-studio/mcp.json"),
    ),
    Client(
        name="kiro", title="Kiro", files=(".kiro/settings/mcp.json",),
        project=(".kiro/settings/mcp.json", ".kiro/agents/*.json"),
    ),
    Client(
        name="antigravity", title="Antigravity",
        files=(".gemini/config/mcp_config.json", ".gemini/antigravity/mcp_config.json"),
    ),
    Client(
        name="warp", title="Warp", files=(".warp/.mcp.json",),
        project=(".warp/.mcp.json", ".agents/.mcp.json"),
    ),
)  # fmt: skip
"""Clients whose files corral can change. Each has a page in `docs/clients`, which names the
sources.
"""

CLIENT_DIRECTORIES = Names(
    everywhere=(
        ".claude.json", ".claude", "CONFIG/Claude", ".cursor", ".cursor-server", "CONFIG/Cursor",
        "CONFIG/Code/User", "CONFIG/Code - Insiders/User", "CONFIG/VSCodium/User",
        ".vscode-server", ".vscode-server-insiders", ".codeium", ".windsurf", "CONFIG/Windsurf",
        ".config/zed", ".gemini", ".codex", ".cline", ".continue", ".config/goose", ".copilot",
        ".config/github-copilot", ".config/opencode", ".local/share/opencode",
        ".lmstudio/mcp.json", ".cache/lm-studio/mcp.json", ".junie", ".qwen", ".config/kilo",
        ".local/share/kilo", ".kilocode", ".config/amp", ".local/share/amp", ".factory",
        ".config/crush", ".local/share/crush", ".kiro", ".warp",
    ),
    windows=(
        f"{ROAMING}/Cursor/User", f"{ROAMING}/Windsurf/User", f"{ROAMING}/Zed",
        f"{ROAMING}/Block/goose", f"{LOCAL}/github-copilot", f"{LOCAL}/crush",
    ),
)  # fmt: skip
"""Files of MCP clients, including clients whose files corral cannot change."""

STARTERS = Names(
    everywhere=(
        ".gitconfig", ".config/git", ".local/bin", "bin", ".vimrc", ".vim", ".config/nvim",
        ".emacs", ".emacs.d", ".config/emacs", ".tmux.conf", ".config/tmux", ".gdbinit",
        ".config/gdb", ".lldbinit", ".config/direnv", ".config/pip", ".config/mise", ".inputrc",
        ".cargo/env", ".cargo/bin", ".cargo/config.toml", ".bun/bin", ".deno/bin", ".volta/bin",
        "go/bin", ".nvm", ".oh-my-zsh", ".ipython", ".config/starship.toml", ".config/kitty",
        ".config/wezterm", ".config/powershell", ".bashrc.d", ".bash_completion",
        ".local/share/bash-completion", ".zsh", ".zfunc", ".local/share/zsh", ".local/share/fish",
        ".jupyter", ".local/share/jupyter", ".pyenv", ".rbenv", ".asdf", ".sdkman", ".rustup",
        ".local/share/uv", ".local/share/pipx", ".local/share/mise", ".local/share/fnm",
        ".local/share/pnpm", ".npm-global", ".yarn", ".m2", ".gradle", ".tmux", ".fzf",
    ),
    linux=(
        ".config/autostart", ".config/systemd", ".config/environment.d", ".local/share/systemd",
        ".local/share/applications", ".local/share/dbus-1", ".pam_environment", ".xprofile",
        ".xsession", ".xsessionrc", ".xinitrc", ".config/plasma-workspace", ".config/i3",
        ".config/sway", ".config/hypr", ".local/lib", ".local/share/nvim",
        ".local/share/gnome-shell/extensions", ".local/share/nautilus", ".local/share/nemo",
        ".local/share/plasma", ".local/share/kwin", ".local/share/kio", ".local/share/cinnamon",
    ),
    macos=(
        "Library/LaunchAgents", "Library/Services", "Library/Scripts", "Library/QuickLook",
        "Library/Input Methods", "Library/Python",
    ),
    windows=(
        f"{ROAMING}/Microsoft/Windows/Start Menu", "Documents/PowerShell",
        "Documents/WindowsPowerShell", "OneDrive/Documents/PowerShell",
        "OneDrive/Documents/WindowsPowerShell",
    ),
)  # fmt: skip
"""Files that are run at login, or that change how the user's programs behave."""

PROJECT = (
    ".vscode", ".idea", ".zed", ".fleet", ".devcontainer", ".devcontainer.json", ".mcp.json",
    ".cursor", ".claude", ".gemini", ".codex", ".continue", ".windsurf", ".roo", ".opencode",
    "opencode.json", "opencode.jsonc", ".github/mcp.json", ".junie", ".qwen", ".kilo", ".kilocode",
    "kilo.json", "kilo.jsonc", ".amp", ".factory", "crush.json", ".crush.json", "crushrc",
    ".crushrc", ".crush/crush.json", ".continuerc.json", ".kiro", ".warp", ".agents/.mcp.json",
    ".envrc", "corral.toml", "corral.json", ".mise.toml", "mise.toml", ".exrc", ".nvimrc",
    ".nvim.lua", ".vimrc", ".dir-locals.el", ".husky", ".pre-commit-config.yaml", "lefthook.yml",
    ".lefthook.yml", ".gdbinit", ".lldbinit",
)  # fmt: skip
"""Files at the top of a project that are run when a user opens the project in an editor, enters its
directory or commits, or that configure the permissions of other servers.
"""

VERSION_CONTROL = (".git", ".hg", ".jj")
"""Directories of version control programs in a project. The programs run files in them, so such a
directory is read-only in a write grant around it, unless a grant names the directory itself.
"""

GIT = ("hooks", "config", "config.worktree", "info", "commondir", "gitdir")
"""Files in a repository's own directory that are run, or that name programs to run. They stay
read-only even if a grant names that directory.
"""

BARE = ("HEAD", "objects")
"""Names in a repository's own directory by which it is recognized, whatever it is called."""

MAKES_GIT_RUN = "this server can make git run programs on this machine"
"""The text of a warning for a server that may write `.git`. Such a server could create the file
`commondir` there, and corral cannot protect a file that does not exist yet.
"""

ENVIRONMENT = (
    ".env", ".env.local", ".env.development", ".env.development.local", ".env.test",
    ".env.test.local", ".env.staging", ".env.production", ".env.production.local",
)  # fmt: skip
"""Usual names of `.env` files at the top of a project. corral checks these names even in a
directory that it does not search for other `.env` files.
"""

ETC_SECRETS = (
    "shadow", "shadow-", "gshadow", "gshadow-", "security/opasswd", "sudoers", "sudoers.d",
    "sudo.conf", "ssh", "ssl/private", "pki/tls/private", "pki/nssdb", "letsencrypt", "acme",
    "NetworkManager/system-connections", "netplan", "wpa_supplicant", "iwd", "wireguard", "openvpn",
    "ipsec.secrets", "ipsec.d", "swanctl", "strongswan", "ppp", "xl2tpd", "tinc", "nebula",
    "krb5.keytab", "samba", "sssd", "ldap.secret", "pam_ldap.secret", "libnss-ldap.secret",
    "crypttab", "cryptsetup-keys.d", "credstore", "credstore.encrypted", "apt/auth.conf",
    "apt/auth.conf.d", "docker", "containers/auth.json", "kubernetes", "rancher", "mysql",
    "postgresql", "redis", "mongod.conf", "rabbitmq", "postfix", "exim4", "dovecot", "msmtprc",
    "mail/authinfo", "boto.cfg", "rclone", "restic", "borg", "davfs2/secrets",
    "vault.d", "consul.d", "nomad.d", "cloudflared", "tailscale", "grafana", "snmp", "munge",
    "ansible", "puppet", "salt", "fstab",
)  # fmt: skip
"""Files and directories with credentials below /etc. No grant may be or contain any of them."""

RUN_BY_SYSTEM = ("/etc", "/var/spool/cron", "/var/spool/at", "/var/spool/incron")
"""Directories with files that the system runs, such as crontabs."""

DATA = (".cache/", ".local/share/", ".local/state/")
"""Directories in which each program keeps its data in a directory of its own."""

RUN_AT_START = ("rc", "profile", "login", "logout", "env", "init")
"""Endings of files in a home directory that interpreters and other programs run when they start,
such as `.pythonrc.py`, `.Rprofile` and `.xonshrc`. There are too many of these files for a table.
"""

PUBLISHED = (".example", ".sample", ".template", ".dist", ".defaults", ".schema")
"""Endings of files such as `.env.example`, which are published on purpose."""


def expand(name: str, system: Column) -> str:
    """Return a path of the table with its placeholder (CONFIG, CLAUDE or CODEX) replaced by the
    usual directory.
    """
    word, _, rest = name.partition("/")
    directory = CONFIG[system] if word == "CONFIG" else MOVABLE.get(word, word)
    return f"{directory}/{rest}".strip("/")


def hidden(system: Column) -> tuple[str, ...]:
    """Return the paths that stay hidden from the target even if a directory around them is
    granted.
    """
    kinds = (KEYS, HISTORY, SHELLS, BROWSERS, APPLICATIONS, CLIENT_DIRECTORIES)
    return tuple(name for kind in kinds for name in kind.on(system))


def hidden_anywhere(system: Column) -> tuple[str, ...]:
    """Return the file names that are secret in every directory, not only in a home directory."""
    names = (*KEYS.on(system), *HISTORY.on(system))
    names += tuple(expand(file, system) for one in CLIENTS for file in one.files_on(system))
    return tuple(name for name in names if "/" not in name)


def protected(system: Column) -> tuple[str, ...]:
    """Return the paths that stay read-only inside a write grant."""
    return STARTERS.on(system)


def is_near_secrets(directory: str, system: Column) -> bool:
    """Return whether a directory contains a hidden path or is inside one. `directory` is relative
    to a home directory.

    Return false for directories inside the hidden directory of an application or an MCP client,
    because servers are installed there.
    """
    fold = str.lower if system == "windows" else str
    path = fold(directory) + "/"
    kinds = (KEYS, HISTORY, SHELLS, BROWSERS)
    if any(path.startswith(fold(name) + "/") for kind in kinds for name in kind.on(system)):
        return True
    return any((fold(name) + "/").startswith(path) for name in hidden(system))


def is_environment_file(name: str) -> bool:
    """Return whether a file is named `.env` or `.env.NAME`, except files such as `.env.example`."""
    return name == ".env" or (name.startswith(".env.") and not name.endswith(PUBLISHED))
