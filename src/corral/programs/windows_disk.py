"""The few questions that resolving a command asks of a disk.

An object instead of calls to `os`, because what is resolved are names for Windows, and what decides
is the text of a few files: a table of those is a disk too, on any system.
"""

from __future__ import annotations

import os
import stat

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, Protocol

    Kind = Literal["file", "directory", "alias", "other", ""]

    class Disk(Protocol):
        def kind(self, path: str) -> Kind:
            """What is there, links followed; "alias" for one that the Store put there."""

        def read(self, path: str) -> bytes:
            """All of a file; empty if there is none, or if it is too large to be looked at."""

        def names(self, path: str) -> list[str]:
            """What a directory holds; empty if there is none."""

        def real(self, path: str) -> str: ...
        def identity(self, path: str) -> tuple[int, int]: ...


APP_EXECUTION_LINK = 0x8000001B  # IO_REPARSE_TAG_APPEXECLINK
LARGEST = 4 << 20  # no launcher is near it


def is_elsewhere(path: str) -> bool:
    r"""Whether it is a share or a device: `\\server\share`, `\\.\pipe\x`, with slashes of any kind.

    A server that is only asked for a file is shown who asks, and the files that are read here are a
    stranger's: to look at what they name is what the walls are to keep from happening.
    """
    return path[:2].replace("/", "\\") == "\\\\"


@record
class HostDisk:
    """Nothing but this machine's own files is looked at: whatever else is named is not there."""

    def kind(self, path: str) -> Kind:
        if is_elsewhere(path):
            return ""
        try:
            if getattr(os.lstat(path), "st_reparse_tag", 0) == APP_EXECUTION_LINK:
                return "alias"
            mode = os.stat(path).st_mode
        except (OSError, ValueError):
            return ""
        if stat.S_ISDIR(mode):
            return "directory"
        return "file" if stat.S_ISREG(mode) else "other"

    def read(self, path: str) -> bytes:
        if is_elsewhere(path):
            return b""
        try:
            with open(path, "rb") as file:
                return file.read() if os.fstat(file.fileno()).st_size <= LARGEST else b""
        except (OSError, ValueError):
            return b""

    def names(self, path: str) -> list[str]:
        if is_elsewhere(path):
            return []
        try:
            return sorted(os.listdir(path))
        except (OSError, ValueError):
            return []

    def real(self, path: str) -> str:
        return path if is_elsewhere(path) else os.path.realpath(path)

    def identity(self, path: str) -> tuple[int, int]:
        found = os.lstat(path)
        return found.st_dev, found.st_ino
