"""Find the selected Apple developer tools, which programs such as /usr/bin/git only start."""

from __future__ import annotations

import os

SELECTED = ("/private/var/select/developer_dir", "/private/var/db/xcode_select_link")
"""Links to the selected tools, which `xcode-select` creates. The first link exists only on some
macOS versions.
"""
USUAL = ("/Applications/Xcode.app/Contents/Developer", "/Library/Developer/CommandLineTools")
"""Directories to search if `xcode-select` has not created a link."""


def find_directory() -> str:
    """Return the directory of the selected tools, or "" if none are installed."""
    for link in (*SELECTED, *USUAL):
        directory = os.path.realpath(link)
        if os.path.isdir(f"{directory}/usr/bin"):
            return directory
    return ""


def find_tool(path: str, directory: str) -> str:
    """Return the path of the developer tool that the file `path` in /usr/bin starts, or "" if the
    file does not start a developer tool.
    """
    parent, name = os.path.split(path)
    tool = f"{directory}/usr/bin/{name}"
    is_tool = directory and parent == "/usr/bin" and os.access(tool, os.X_OK)
    return tool if is_tool else ""
