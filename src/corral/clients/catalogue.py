"""Where the clients that corral knows keep their servers, on this machine.

The table of clients is in `policy/secret_files`, because their files hold tokens. A client's name
stands for its own files, which are the user's. Files in a project are often shared with others, and
are changed only when they are named themselves.
"""

from __future__ import annotations

import os
import sys

from corral.directories import absolute, home_directory
from corral.errors import SandboxError
from corral.policy.secret_files import CLIENTS, Client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.formats.positions import Format
    from corral.policy.secret_files import Column

__all__ = ["CLIENTS", "NAMES", "format_of", "named", "own_files", "project_files"]

SYSTEMS: Mapping[str, Column] = {"darwin": "macos", "win32": "windows"}
NAMES = tuple(client.name for client in CLIENTS)


def named(name: str) -> Client | None:
    return next((client for client in CLIENTS if client.name == name), None)


def roots(platform: str, environ: Mapping[str, str], home: str) -> dict[str, str]:
    """Return the directories that the first words of the table stand for here."""
    if platform == "win32":
        config = absolute(environ, "APPDATA", os.path.join(home, "AppData", "Roaming"))
    elif platform == "darwin":
        config = os.path.join(home, "Library", "Application Support")
    else:
        config = absolute(environ, "XDG_CONFIG_HOME", os.path.join(home, ".config"))
    return {
        "CONFIG": config,
        "CLAUDE": absolute(environ, "CLAUDE_CONFIG_DIR", home),
        "CODEX": absolute(environ, "CODEX_HOME", os.path.join(home, ".codex")),
    }


def own_files(
    client: Client, *, platform: str = sys.platform, environ: Mapping[str, str] | None = None
) -> list[str]:
    """Return where the client's own files would be; they need not exist."""
    environ = os.environ if environ is None else environ
    home = home_directory(environ)
    known = roots(platform, environ, home)
    words = [path.split("/") for path in client.files_on(SYSTEMS.get(platform, "linux"))]
    return [os.path.join(known.get(word, os.path.join(home, word)), *rest) for word, *rest in words]


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
