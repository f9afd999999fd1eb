"""Look up files for the resolver that turns a command into a Program on Windows.

The resolver uses a `Disk` instead of `os`, so that tests can resolve Windows paths on any system,
with a fake disk.
"""

import os
import stat
from typing import Literal, Protocol

from corral.programs.needed_files import list_names
from corral.record import record

Kind = Literal["file", "directory", "alias", "other", ""]
APP_EXECUTION_LINK = 0x8000001B  # IO_REPARSE_TAG_APPEXECLINK
MAX_SIZE = 4 << 20  # no launcher is this large


class Disk(Protocol):
    def kind(self, path: str) -> Kind:
        """Follow all symlinks of a path, and return the kind of file to which it leads. "alias" is
        a Microsoft Store alias, and "" means that there is no file.
        """

    def read(self, path: str) -> bytes:
        """Return the content of a file, or b"" if it is missing or larger than MAX_SIZE."""

    def names(self, path: str) -> list[str]:
        """Return the names of the files in a directory, or none if the directory is missing."""

    def real(self, path: str) -> str: ...
    def identity(self, path: str) -> tuple[int, int]: ...


def is_remote(path: str) -> bool:
    r"""Return whether this is a share or a device: `\\server\share`, `\\.\pipe\x`, or the same with
    slashes.

    Such paths are dangerous, because untrusted files can name any server. When Windows opens a file
    on a server, it sends the user's credentials to that server.
    """
    return path[:2].replace("/", "\\") == "\\\\"


@record
class HostDisk:
    """The files of this machine. A remote path counts as missing and is never opened."""

    def kind(self, path: str) -> Kind:
        if is_remote(path):
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
        if is_remote(path):
            return b""
        try:
            with open(path, "rb") as file:
                return file.read() if os.fstat(file.fileno()).st_size <= MAX_SIZE else b""
        except (OSError, ValueError):
            return b""

    def names(self, path: str) -> list[str]:
        return [] if is_remote(path) else list_names(path)

    def real(self, path: str) -> str:
        return path if is_remote(path) else os.path.realpath(path)

    def identity(self, path: str) -> tuple[int, int]:
        found = os.lstat(path)
        return found.st_dev, found.st_ino
