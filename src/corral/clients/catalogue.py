"""The clients corral knows: where each keeps its servers, on the three systems.

`docs/clients` has a page for each with where this was read. `own` files belong to the user and are
what a client's name stands for. `project` files lie in a project, often shared with others, and
are changed only when they are named themselves.
"""

from __future__ import annotations

import os
import sys

from corral.directories import absolute, home_directory
from corral.errors import SandboxError
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.formats.positions import Format


@record
class Client:
    """Paths start with one of the words in `roots`. `linux` and so on replace `own` there."""

    name: str
    title: str
    own: tuple[str, ...] = ()
    project: tuple[str, ...] = ()
    linux: tuple[str, ...] = ()
    darwin: tuple[str, ...] = ()
    win32: tuple[str, ...] = ()


CODE = "CONFIG/Code/User"
CLIENTS = (
    Client(
        name="claude-desktop",
        title="Claude Desktop",
        own=("CONFIG/Claude/claude_desktop_config.json",),
    ),
    Client(
        name="claude-code",
        title="Claude Code",
        own=("CLAUDE/.claude.json",),
        project=(".mcp.json",),
    ),
    Client(
        name="cursor",
        title="Cursor",
        own=("HOME/.cursor/mcp.json",),
        project=(".cursor/mcp.json",),
    ),
    Client(
        name="vscode",
        title="VS Code",
        own=(f"{CODE}/mcp.json", f"{CODE}/settings.json"),
        project=(".vscode/mcp.json",),
    ),
    Client(
        name="windsurf",
        title="Windsurf",
        own=("HOME/.codeium/windsurf/mcp_config.json",),
    ),
    Client(
        name="zed",
        title="Zed",
        linux=("CONFIG/zed/settings.json",),
        darwin=("HOME/.config/zed/settings.json",),
        win32=("CONFIG/Zed/settings.json",),
        project=(".zed/settings.json",),
    ),
    Client(
        name="gemini",
        title="Gemini CLI",
        own=("HOME/.gemini/settings.json",),
        project=(".gemini/settings.json",),
    ),
    Client(
        name="codex",
        title="Codex",
        own=("CODEX/config.toml",),
        project=(".codex/config.toml",),
    ),
    Client(
        name="cline",
        title="Cline",
        own=(
            "HOME/.cline/data/settings/cline_mcp_settings.json",
            f"{CODE}/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        ),
    ),
    Client(
        name="continue",
        title="Continue",
        own=("HOME/.continue/config.yaml",),
        project=(".continue/config.yaml",),
    ),
    Client(
        name="goose",
        title="Goose",
        linux=("CONFIG/goose/config.yaml",),
        darwin=("HOME/.config/goose/config.yaml",),
        win32=("CONFIG/Block/goose/config/config.yaml",),
    ),
)
NAMES = tuple(client.name for client in CLIENTS)


def named(name: str) -> Client | None:
    return next((client for client in CLIENTS if client.name == name), None)


def roots(platform: str, environ: Mapping[str, str], home: str) -> dict[str, str]:
    """CONFIG is where the system keeps the settings of programs."""
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
    client: Client, *, platform: str = sys.platform, environ: Mapping[str, str] | None = None
) -> list[str]:
    """Where the client's own files would be; they need not exist."""
    environ = os.environ if environ is None else environ
    places = roots(platform, environ, home_directory(environ))
    special = {"darwin": client.darwin, "win32": client.win32}.get(platform, client.linux)
    words = [path.split("/") for path in special or client.own]
    return [os.path.join(places[first], *rest) for first, *rest in words]


def project_files(client: Client, directory: str) -> list[str]:
    return [os.path.join(directory, *path.split("/")) for path in client.project]


def format_of(path: str) -> Format | None:
    """By its name; the format is imported when a file of it is met."""
    ending = os.path.splitext(path)[1].lower()
    if ending in {".json", ".jsonc"}:
        from corral.formats import jsonc

        return jsonc
    if ending == ".toml":
        from corral.formats import toml

        return toml
    if ending in {".yaml", ".yml"}:
        from corral.formats import yaml

        if yaml.is_missing():
            raise SandboxError(f"{path} is YAML, and PyYAML is not here", hint="pip install pyyaml")
        return yaml
    return None
