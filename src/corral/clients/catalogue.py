"""The MCP clients that corral knows, and the files in which each configures its servers.

`docs/clients` has a page for each client with the source of these paths. `own` files are the
user's, and a client's name on the command line means these files. `project` files are in a project,
are often shared with others, and are changed only when the user names the file itself.
"""

import os
import sys
from collections.abc import Mapping

from corral.directories import absolute, home_directory
from corral.record import record


@record
class ClientProgram:
    """Paths start with a key of `base_directories`; those for one system replace `own` there."""

    name: str
    title: str
    own: tuple[str, ...] = ()
    project: tuple[str, ...] = ()
    linux: tuple[str, ...] = ()
    darwin: tuple[str, ...] = ()
    win32: tuple[str, ...] = ()


CODE = "CONFIG/Code/User"
CLIENTS = (
    ClientProgram(
        name="claude-desktop",
        title="Claude Desktop",
        own=("CONFIG/Claude/claude_desktop_config.json",),
    ),
    ClientProgram(
        name="claude-code",
        title="Claude Code",
        own=("CLAUDE/.claude.json",),
        project=(".mcp.json",),
    ),
    ClientProgram(
        name="cursor",
        title="Cursor",
        own=("HOME/.cursor/mcp.json",),
        project=(".cursor/mcp.json",),
    ),
    ClientProgram(
        name="vscode",
        title="VS Code",
        own=(f"{CODE}/mcp.json", f"{CODE}/settings.json"),
        project=(".vscode/mcp.json",),
    ),
    ClientProgram(
        name="windsurf",
        title="Windsurf",
        own=("HOME/.codeium/windsurf/mcp_config.json",),
    ),
    ClientProgram(
        name="zed",
        title="Zed",
        linux=("CONFIG/zed/settings.json",),
        darwin=("HOME/.config/zed/settings.json",),
        win32=("CONFIG/Zed/settings.json",),
        project=(".zed/settings.json",),
    ),
    ClientProgram(
        name="gemini",
        title="Gemini CLI",
        own=("HOME/.gemini/settings.json",),
        project=(".gemini/settings.json",),
    ),
    ClientProgram(
        name="codex",
        title="Codex",
        own=("CODEX/config.toml",),
        project=(".codex/config.toml",),
    ),
    ClientProgram(
        name="cline",
        title="Cline",
        own=(
            "HOME/.cline/data/settings/cline_mcp_settings.json",
            f"{CODE}/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        ),
    ),
    ClientProgram(
        name="continue",
        title="Continue",
        own=("HOME/.continue/config.yaml",),
        project=(".continue/config.yaml",),
    ),
    ClientProgram(
        name="goose",
        title="Goose",
        linux=("CONFIG/goose/config.yaml",),
        darwin=("HOME/.config/goose/config.yaml",),
        win32=("CONFIG/Block/goose/config/config.yaml",),
    ),
)
NAMES = tuple(client.name for client in CLIENTS)


def find_client(name: str) -> ClientProgram | None:
    return next((client for client in CLIENTS if client.name == name), None)


def base_directories(platform: str, environ: Mapping[str, str], home: str) -> dict[str, str]:
    """Return the directory for each first word of a path; CONFIG has the settings of programs."""
    if platform == "win32":
        config = absolute(environ, "APPDATA", os.path.join(home, "AppData", "Roaming"))
    elif platform == "darwin":
        config = os.path.join(home, "Library", "Application Support")
    else:
        config = absolute(environ, "XDG_CONFIG_HOME", os.path.join(home, ".config"))
    return {
        "HOME": home,
        "CONFIG": config,
        "CLAUDE": absolute(environ, "CLAUDE_CONFIG_DIR", home),
        "CODEX": absolute(environ, "CODEX_HOME", os.path.join(home, ".codex")),
    }


def own_files(
    client: ClientProgram, *, platform: str = sys.platform, environ: Mapping[str, str] = os.environ
) -> list[str]:
    """Return the paths of the client's own files; they need not exist."""
    bases = base_directories(platform, environ, home_directory(environ))
    special = {"darwin": client.darwin, "win32": client.win32}.get(platform, client.linux)
    split = [path.split("/") for path in special or client.own]
    return [os.path.join(bases[first], *rest) for first, *rest in split]


def project_files(client: ClientProgram, directory: str) -> list[str]:
    return [os.path.join(directory, *path.split("/")) for path in client.project]
