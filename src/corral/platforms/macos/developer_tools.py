"""Find the Apple developer tools that the user has selected.

Programs such as /usr/bin/git are only launchers: they start the selected tool of the same name.
"""

from __future__ import annotations

import os

SELECTED = ("/private/var/select/developer_dir", "/private/var/db/xcode_select_link")
"""Symlinks to the selected tools, created by `xcode-select`. The first exists only on some versions
of macOS.
"""
USUAL = ("/Applications/Xcode.app/Contents/Developer", "/Library/Developer/CommandLineTools")
"""Directories to search if `xcode-select` has not created a symlink."""


def find_directory() -> str:
    """Return the directory of the selected tools, or "" if none are installed."""
    for link in (*SELECTED, *USUAL):
        directory = os.path.realpath(link)
        if os.path.isdir(f"{directory}/usr/bin"):
            return directory
    return ""


def find_tool(path: str, directory: str) -> str:
    """Return the path of the developer tool that a launcher in /usr/bin starts. Return "" if `path`
    is not such a launcher.
    """
    parent, name = os.path.split(path)
    tool = f"{directory}/usr/bin/{name}"
    is_tool = directory and parent == "/usr/bin" and os.access(tool, os.X_OK)
    return tool if is_tool else ""
