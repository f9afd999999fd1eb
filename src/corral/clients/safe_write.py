"""Read and replace another program's file without losing content.

The old file is replaced in one step by a new one with the same mode and owner, but only if it has
not changed since it was read. A change that another program makes between this check and the
replacement is lost.
"""

import os
import stat
import sys

from corral.abi.whole_file import replace_file
from corral.disk_hints import disk_hint
from corral.errors import SandboxError
from corral.record import record
from corral.safe_text import shell_word

NAME_A_FILE = (
    "name a client's settings file that you may read; `corral status` lists those that it finds"
)
WINDOWS = sys.platform == "win32"
MAX_SIZE = 32 << 20
# O_BINARY exists only on Windows, O_CLOEXEC and O_NOFOLLOW only on POSIX.
OPEN_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


@record
class FileContent:
    """A file as it was read. `path` is its real path, without links."""

    path: str
    data: bytes
    stat: os.stat_result

    @property
    def text(self) -> str:
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            raise SandboxError(
                f"{self.path}: line {line}: this is not UTF-8 text",
                hint="save the file as UTF-8",
            ) from None


def read(path: str) -> FileContent:
    real = os.path.realpath(path)
    try:
        fd = os.open(real, os.O_RDONLY | OPEN_FLAGS | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise SandboxError(f"{path} cannot be read: {error.strerror}", hint=NAME_A_FILE) from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise SandboxError(f"{path} is not a regular file", hint=NAME_A_FILE)
    with open(fd, "rb") as stream:
        if found.st_size > MAX_SIZE:
            raise SandboxError(
                f"{path} is larger than {MAX_SIZE >> 20} MiB", hint="is it the right file?"
            )
        return FileContent(path=real, data=stream.read(MAX_SIZE), stat=found)


def refuse_unwritable(content: FileContent) -> None:
    """Refuse a read-only file, even if this process could write to it as root. Also refuse a file
    with several hard links, because its other names would keep the old content.
    """
    found, path = content.stat, content.path
    if not found.st_mode & 0o222 or not os.access(path, os.W_OK):
        hint = "if another program generates this file, change its source instead"
        if not found.st_mode & stat.S_IWUSR:
            unlock = f'attrib -r "{path}"' if WINDOWS else f"chmod u+w {shell_word(path)}"
            hint += f"; otherwise: {unlock}"
        raise SandboxError(f"{path} is read-only", hint=hint)
    if found.st_nlink > 1:
        raise SandboxError(
            f"{path} has {found.st_nlink} hard links, and a new file would replace only one",
            hint="make it a separate file, or a symbolic link",
        )


def replace(content: FileContent, data: bytes) -> None:
    """Replace `content` with `data`. Raise an error if the file has changed since it was read."""

    def check() -> None:
        now = read(content.path)
        if now.data != content.data or not os.path.samestat(now.stat, content.stat):
            raise SandboxError(
                f"{content.path} was changed by another program while corral edited it",
                hint="nothing was written; try again",
            )

    try:
        replace_file(content.path, data, like=content.stat, check=check)
    except OSError as error:
        directory = shell_word(os.path.dirname(os.path.abspath(content.path)))
        raise SandboxError(
            f"{content.path} cannot be replaced: {error.strerror}",
            hint=disk_hint(error, content.path, f"check who may write to {directory}"),
        ) from error
