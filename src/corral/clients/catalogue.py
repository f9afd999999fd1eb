"""Find the files on this machine in which MCP clients configure their servers.

The table of clients is in `policy/secret_files`, which lists the files that no target may read,
because clients' files contain tokens. On the command line, the name of a client means its own
files, which belong to this user. A file in a project is often shared with other people, so corral
changes it only if the user names the file itself.
"""

import os
import sys
from collections.abc import Mapping
from typing import Literal

from corral.directories import absolute, home_directory
from corral.policy.secret_files import CLIENTS, Client

__all__ = ["CLIENTS", "NAMES", "find_client", "find_project", "own_files", "project_files"]

NAMES = tuple(client.name for client in CLIENTS)
COLUMNS: dict[str, Literal["macos", "windows"]] = {"darwin": "macos", "win32": "windows"}


def find_client(name: str) -> Client | None:
    return next((client for client in CLIENTS if client.name == name), None)


def base_directories(platform: str, environ: Mapping[str, str], home: str) -> dict[str, str]:
    """Return the directory for each placeholder in the paths of CLIENTS, such as CONFIG."""
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
    client: Client, *, platform: str = sys.platform, environ: Mapping[str, str] = os.environ
) -> list[str]:
    """Return the paths of the client's own files, whether they exist or not."""
    home = home_directory(environ)
    bases = base_directories(platform, environ, home)
    split = [path.split("/") for path in client.files_on(COLUMNS.get(platform, "linux"))]
    return [
        os.path.join(bases.get(first, os.path.join(home, first)), *rest) for first, *rest in split
    ]


def project_files(client: Client, directory: str) -> list[str]:
    """Return the paths of the client's files in a project. For a path with `*`, return the files
    that match it. Also return links to directories: corral does not follow them, but `wrap --check`
    reports them as files that cannot be read.
    """
    found: list[str] = []
    for name in client.project:
        above, star, ending = name.partition("*")
        top = os.path.join(directory, *above.split("/"))
        for here, below, files in os.walk(top) if star else ():
            links = [one for one in below if os.path.islink(os.path.join(here, one))]
            matching = [one for one in files if one.endswith(ending)]
            found += (os.path.join(here, one) for one in sorted((*links, *matching)))
        found += () if star else (top,)
    return found


def find_project(path: str) -> str:
    """Return the directory of the project that a configuration file belongs to. Return "" for any
    other file, such as a client's own file.
    """
    path = os.path.abspath(path)
    own = {os.path.realpath(file) for client in CLIENTS for file in own_files(client)}
    if os.path.realpath(path) in own:
        return ""
    ends = [os.path.join(os.sep, *name.split("/")) for one in CLIENTS for name in one.project]
    for above, star, ending in (end.partition("*") for end in ends):
        project, found, rest = path.rpartition(above)
        if found and rest.endswith(ending) and bool(star) == bool(rest):
            return project
    return ""
