"""Find Apple's selected developer tools. /usr/bin/git, python3 and make only start these tools."""

from __future__ import annotations

import os

SELECTED = ("/private/var/select/developer_dir", "/private/var/db/xcode_select_link")
"""Links that `xcode-select` makes. Only some macOS versions have the first link."""
USUAL = ("/Applications/Xcode.app/Contents/Developer", "/Library/Developer/CommandLineTools")
"""Directories that are searched if `xcode-select` has made no link."""


def find_directory() -> str:
    """Return the directory of the selected tools, or "" if none are installed."""
    for link in (*SELECTED, *USUAL):
        directory = os.path.realpath(link)
        if os.path.isdir(f"{directory}/usr/bin"):
            return directory
    return ""


def find_tool(path: str, directory: str) -> str:
    """Return the developer tool that a file in /usr/bin starts, or "" if the file starts none."""
    parent, name = os.path.split(path)
    tool = f"{directory}/usr/bin/{name}"
    is_tool = directory and parent == "/usr/bin" and os.access(tool, os.X_OK)
    return tool if is_tool else ""
