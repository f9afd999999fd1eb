r"""Make Python's standard library work inside an AppContainer. Python's `site` module loads this
module before the server.

No wall depends on this module: a server that removes it only loses the repairs. The module imports
only modules that are built in or already loaded. It repairs:

- `os.mkdir(..., 0o700)`, and so `tempfile.mkdtemp`: since Python 3.12.4 and 3.11.10 an AppContainer
  cannot open a directory that it has created in this way (python/cpython#134587).
- `os.path.realpath(strict=True)`: in an AppContainer, Windows denies GetFinalPathNameByHandleW.
- Named pipes (asyncio's subprocesses, multiprocessing): an AppContainer can use only names in
  `\\.\pipe\LOCAL\`.
- NUL (`subprocess.DEVNULL`): some builds of Windows do not let an AppContainer open it.
- An `.env` file that corral hides from the target: on Windows the target still sees the file's
  name, and a server with pydantic-settings (FastMCP) exits if it cannot open the file. So the
  target reads an empty file instead, as on Linux.
"""

from __future__ import annotations

import builtins
import io
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Function = Callable[..., object]  # type: ignore[explicit-any] # functions of any signature

PRIVATE, DEFAULT = 0o700, 0o777
PIPES, LOCAL_PIPES = "\\\\.\\pipe\\", "\\\\.\\pipe\\LOCAL\\"
NUL = ("nul", "\\\\.\\nul")
PIPE_CALLS = ("CreateNamedPipe", "CreateFile", "WaitNamedPipe")
open_descriptor = os.open


def repair_mkdir(mkdir: Function) -> Function:
    def made(path: str, mode: int = DEFAULT, *, dir_fd: int | None = None) -> object:
        return mkdir(path, DEFAULT if mode == PRIVATE else mode, dir_fd=dir_fd)

    return made


def repair_realpath(realpath: Function) -> Function:
    def found(path: str, *, strict: object = False) -> object:
        try:
            return realpath(path, strict=strict)
        except PermissionError:
            os.lstat(path)  # raises if the path itself is denied
            return realpath(path)

    return found


def repair_pipe_call(call: Function) -> Function:
    """Wrap a `_winapi` function, so that it gets a local name in place of a pipe's global name."""

    def called(name: str, *arguments: object) -> object:
        if name.lower().startswith(PIPES) and not name.upper().startswith(LOCAL_PIPES.upper()):
            name = LOCAL_PIPES + name[len(PIPES) :]
        return call(name, *arguments)

    return called


def open_empty_file(_path: str, flags: int, _mode: int = DEFAULT, **_more: object) -> int:
    """Open a new empty file instead of NUL or of a hidden `.env` file. Windows removes the new file
    when its last descriptor is closed.
    """
    name = os.path.join(os.environ["TEMP"], f"nul-{os.getpid()}-{os.urandom(8).hex()}")
    more = os.O_CREAT | os.O_EXCL | getattr(os, "O_TEMPORARY", 0)
    return open_descriptor(name, flags | more)


def repair_os_open(call: Function) -> Function:
    def opened(path: str, *arguments: int, **options: int) -> object:
        return (open_empty_file if _is_nul(path) else call)(path, *arguments, **options)

    return opened


def repair_open(call: Function) -> Function:
    def opened(file: str, *arguments: object, **options: object) -> object:
        if _is_nul(file):
            options["opener"] = open_empty_file
        return call(file, *arguments, **options)

    return opened


def repair_hidden_file(call: Function) -> Function:
    """Return an `open` function that opens an empty file if a program wants to read an `.env` file
    and is denied access to it.
    """

    def opened(file: object, *arguments: object, **options: object) -> object:
        try:
            return call(file, *arguments, **options)
        except PermissionError:
            mode = str(arguments[0] if arguments else options.get("mode", "r"))
            if not _is_environment_file(file) or set(mode).intersection("wax+"):
                raise
        options["opener"] = open_empty_file
        return call(file, *arguments, **options)

    return opened


def _is_environment_file(path: object) -> bool:
    if not isinstance(path, (str, os.PathLike)):
        return False
    name = str(os.path.basename(os.fspath(path))).lower()
    return name == ".env" or name.startswith(".env.")


def _is_nul(path: object) -> bool:
    return isinstance(path, str) and path.lower() in NUL


def is_nul_open() -> bool:
    try:
        os.close(os.open(NUL[1], os.O_RDWR))
    except OSError:
        return False
    return True


def install() -> None:
    import _winapi

    repairs: list[tuple[object, str, Callable[[Function], Function]]] = [
        (os, "mkdir", repair_mkdir),
        (os.path, "realpath", repair_realpath),
        *((_winapi, name, repair_pipe_call) for name in PIPE_CALLS),
        (builtins, "open", repair_hidden_file),
    ]
    if not is_nul_open():
        repairs += [(os, "open", repair_os_open), (builtins, "open", repair_open)]
    for module, name, repair in repairs:
        setattr(module, name, repair(getattr(module, name)))
    io.open = builtins.open


if os.name == "nt":
    install()
