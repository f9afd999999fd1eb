"""Find programs, follow symlinks, and collect the host's files that a command needs.

A whole directory is collected only if it belongs to a single server. Home directories, shared
directories such as /tmp, and the directories above them are never collected.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from corral.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, CommandError
from corral.paths.posix import is_inside
from corral.record import record
from corral.safe_text import shell_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.policy.secret_files import Column
    from corral.programs.scope import Scope

# Every target sees the host's files in these directories.
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
    "/etc/alternatives", "/nix/store", "/gnu/store", "/System/Library", "/System/Cryptexes",
    "/System/iOSSupport",
)  # fmt: skip
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"

# Many programs or people share these directories, so only the needed files in them are bound.
SHARED = frozenset((
    "/", "/home", "/media", "/mnt", "/nix", "/gnu", "/opt", "/root", "/run", "/run/media",
    "/run/user", "/snap", "/srv", "/var", "/var/cache", "/var/home", "/var/lib", "/var/opt",
    "/var/run", "/Applications", "/Library", "/Users", "/Volumes", "/private", "/private/tmp",
    "/private/var", "/private/var/tmp",
    "/tmp", "/var/tmp",  # noqa: S108 - no file is made here; these are never bound
))  # fmt: skip

# Each subdirectory of these directories is a user's home or runtime directory, or a disk.
PARENTS_OF_HOMES = ("/home", "/Users", "/var/home", "/run/user", "/mnt", "/media", "/Volumes")
NEVER_INSIDE = ("/boot", "/dev", "/etc", "/private/etc", "/proc", "/sys")
SHARED_IN_HOME = (
    ".cache", ".cargo", ".config", ".local", ".local/bin", ".local/lib", ".local/share",
    ".local/state", "bin", "Desktop", "Documents", "Downloads", "Library",
    "Library/Application Support",
)  # fmt: skip

MAX_LINKS = 40  # the kernel's own maximum: path_resolution(7)
RUNTIMES = {".py": "python3", ".js": "node", ".mjs": "node", ".cjs": "node", ".sh": "sh"}
"""Programs that run a script, by the ending of its name, for a hint."""
MAX_HEAD_BYTES = 16384  # enough for a `#!` line and for the shell shims of package managers
MAX_TEXT_BYTES = 1 << 20


def is_system(path: str) -> bool:
    return any(is_inside(path, root) for root in SYSTEM)


def _open(path: str, *, follow: bool) -> int:
    # Without O_NONBLOCK, opening a fifo would block forever.
    flags: int = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    return os.open(path, flags)


def read_text(path: str) -> str:
    """Return the text of a small regular file, or '' for anything else."""
    try:
        descriptor = _open(path, follow=True)
    except (OSError, ValueError):
        return ""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_TEXT_BYTES:
            return ""
        return os.read(descriptor, MAX_TEXT_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def read_json(path: str) -> dict[str, object]:
    """Return the object in a small JSON file, or {} for anything else."""
    text = read_text(path)
    if not text:
        return {}
    import json

    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def list_names(directory: str) -> list[str]:
    """Return the sorted names in a directory, or [] if it cannot be read."""
    try:
        return sorted(os.listdir(directory))
    except (OSError, ValueError):
        return []


def is_program(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK)
    except (OSError, ValueError):
        return False


@record
class Executable:
    """An executable file. `device` and `inode` identify the file that `inspect_executable` found,
    and `head` contains its first bytes.
    """

    path: str
    real: str
    device: int
    inode: int
    head: bytes


@record
class Caller:
    """The caller's settings that decide which file a typed name refers to."""

    environment: Mapping[str, str]
    cwd: str
    home: str

    def lookup(self, name: str, *, without: str = "") -> str:
        """Return the absolute path of the first program of this name on PATH, or ''. Relative
        directories on PATH and the directory `without` are skipped.
        """
        for entry in self.search_path():
            if entry.rstrip("/") != without and is_program(f"{entry}/{name}"):
                return self.absolute(f"{entry}/{name}")
        return ""

    def search_path(self) -> list[str]:
        entries = (self.environment.get("PATH") or DEFAULT_PATH).split(":")
        return [entry for entry in entries if entry.startswith("/")]

    def absolute(self, path: str) -> str:
        """Make a path absolute. Resolve it up to its last `..`, because the directory before the
        `..` may be missing in the sandbox. Keep the symlinks after it.
        """
        parts = [part for part in os.path.join(self.cwd, path).split("/") if part not in {"", "."}]
        if ".." in parts:
            last = len(parts) - 1 - parts[::-1].index("..")
            try:
                above = os.path.realpath("/" + "/".join(parts[: last + 1]))
            except ValueError:  # a NUL byte: opening the path will report it
                return os.path.join(self.cwd, path)
            parts = [above.strip("/"), *parts[last + 1 :]]
        return "/" + "/".join(part for part in parts if part)

    def variable(self, name: str, default: str) -> str:
        """Return the directory that an environment variable names, or `default` if it is not an
        absolute path.
        """
        value = self.environment.get(name, "")
        return value.rstrip("/") if value.startswith("/") else default


def find_on_path(name: str) -> str:
    """Return the absolute path of a name on this process's PATH, or ''."""
    if sys.platform == "win32":
        from corral.programs import windows_resolve

        return windows_resolve.find_on_path(name)
    return Caller(environment=os.environ, cwd="/", home="").lookup(name)


def home_names(home: str) -> set[str]:
    """Return both paths of a home directory: the path as written, and the real path."""
    return {home.rstrip("/"), os.path.realpath(home)} - {""} if home else set()


def is_shared(directory: str, homes: set[str]) -> bool:
    """Return whether a directory must not be bound as a whole, because it may contain secrets or
    more than one server.
    """
    if directory in SHARED or os.path.dirname(directory) in PARENTS_OF_HOMES:
        return True
    if any(is_inside(directory, root) for root in NEVER_INSIDE):
        return True
    for home in homes:
        if is_inside(home, directory) or directory in {f"{home}/{name}" for name in SHARED_IN_HOME}:
            return True
        below = directory.removeprefix(f"{home}/")
        if below != directory:
            from corral.policy.secret_files import is_near_secrets

            system: Column = "macos" if sys.platform == "darwin" else "linux"
            if is_near_secrets(below, system):
                return True
    return os.path.lexists(f"{directory}/.ssh") or os.path.lexists(f"{directory}/.gnupg")


class NeededFiles:
    """Collects the files that must be visible in the sandbox.

    `reads` maps each real path to the reason why it is needed. `links` maps the path of each
    symlink to its target. `scope` decides whether a file to which the server's files refer becomes
    readable.
    """

    def __init__(self, homes: set[str], scope: Scope) -> None:
        self.homes = homes
        self.scope = scope
        self.reads: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.notes: list[str] = []
        self._targets: dict[str, str | None] = {}

    def _readlink(self, path: str) -> str | None:
        if path not in self._targets:
            try:
                self._targets[path] = os.readlink(path)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._targets[path] = None
        return self._targets[path]

    def trace(self, path: str) -> tuple[str, list[tuple[str, str]]]:
        """Return the real path, and each symlink on the way to it as (path, target). Raise OSError
        if open(2) would fail.
        """
        real, links = "", []
        left = path.split("/")[::-1]
        while left:
            name = left.pop()
            if name in {"", "."}:
                continue
            if name == "..":
                real = os.path.dirname(real).rstrip("/")
                continue
            target = self._readlink(f"{real}/{name}")
            if target is None:
                real = f"{real}/{name}"
                continue
            links.append((f"{real}/{name}", target))
            if len(links) > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            left.extend(target.split("/")[::-1])
            real = "" if target.startswith("/") else real
        return real or "/", links

    def real_path(self, path: str) -> str:
        """Return the real path, or '' if the path does not exist."""
        try:
            return self.trace(path)[0]
        except (OSError, ValueError):
            return ""

    def follow(self, path: str) -> str:
        """Return the real path, and collect the symlinks on the way to it."""
        real, links = self.trace(path)
        for link, target in links:
            if not is_system(link):
                # A link to `a/../b` works only if `a` exists, but `a` may be missing in the
                # sandbox. So replace the link's target with its real path.
                if "/../" in target.lstrip("./") + "/":
                    target = self.trace(os.path.join(os.path.dirname(link), target))[0]  # noqa: PLW2901
                self.links[link] = target
        self.check_links(path)
        return real

    def check_links(self, path: str) -> None:
        for link, _ in self.trace(path)[1]:
            self.scope.check_link(link, self.trace(link)[0])

    def is_shared(self, directory: str) -> bool:
        return is_shared(directory, self.homes)

    def covers(self, real: str) -> bool:
        return is_system(real) or any(is_inside(real, root) for root in self.reads)

    def bind(self, real: str, why: str) -> None:
        if not self.covers(real):
            self.reads[real] = why

    def bind_path(self, path: str, why: str) -> str:
        """Resolve a path, bind its file, and return the real path, or '' if the file does not
        exist.
        """
        try:
            real = self.follow(path)
        except (OSError, ValueError):
            return ""
        self.bind(real, why)
        return real

    def collect(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return the paths in `reads` with their reasons, and the symlinks. Leave out everything
        that is inside another path in `reads`.
        """
        reads = [
            (path, why)
            for path, why in self.reads.items()
            if not any(other != path and is_inside(path, other) for other in self.reads)
        ]
        links = [(link, target) for link, target in self.links.items() if not self.covers(link)]
        return reads, links


def inspect_executable(path: str, needed: NeededFiles) -> Executable:
    """Return the file that `path` leads to. Raise CommandError if it cannot be executed."""
    try:
        real = needed.trace(path)[0]
        status = os.stat(real, follow_symlinks=False)
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else errno.ENOENT
        missing = number in {errno.ENOENT, errno.ENOTDIR}
        code = EXIT_NOT_FOUND if missing else EXIT_NOT_EXECUTABLE
        reason = os.strerror(number or errno.ENOENT)
        raise CommandError(
            f"{path!r}: {reason}", exit_code=code, hint=_symlink_hint(path)
        ) from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise CommandError(f"{path!r} is {kind}", exit_code=EXIT_NOT_EXECUTABLE)
    if not os.access(real, os.X_OK):
        hint = _execution_hint(path, _read_head(real, status)[2])
        raise CommandError(f"{path!r} is not executable", exit_code=EXIT_NOT_EXECUTABLE, hint=hint)
    device, inode, head = _read_head(real, status)
    return Executable(path=path, real=real, device=device, inode=inode, head=head)


def _execution_hint(path: str, head: bytes) -> str:
    """Return a hint for a file that is not executable. Suggest `chmod` only for a file that the
    kernel can start.
    """
    if head.startswith((b"#!", b"\x7fELF")):
        return f"chmod +x {shell_word(path)}"
    runtime = RUNTIMES.get(os.path.splitext(path)[1])
    return f"write {runtime} {shell_word(path)}" if runtime else "name the program that runs it"


def _symlink_hint(path: str) -> str | None:
    try:
        target = os.readlink(path)
    except (OSError, ValueError):
        return None
    return f"it is a symlink to {target!r}"


def _read_head(real: str, status: os.stat_result) -> tuple[int, int, bytes]:
    try:
        descriptor = _open(real, follow=False)
    except OSError:  # mode 0711: executable but not readable, so it is not a script
        return status.st_dev, status.st_ino, b""
    try:
        opened = os.fstat(descriptor)
        return opened.st_dev, opened.st_ino, os.read(descriptor, MAX_HEAD_BYTES)
    finally:
        os.close(descriptor)
