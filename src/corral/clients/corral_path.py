"""Find the path of corral to write into a client's configuration. Refuse temporary paths."""

import os
import sys
from shutil import which

from corral.errors import SandboxError
from corral.paths.native import is_inside

NAMES = frozenset(("corral", "corral.exe"))
# Cache directories of `uvx` and `pipx run`. These programs may empty them at any time, so a client
# must not start corral from there.
CACHES = (
    "/uv/archive-v", "/uv/builds-v", "/uv/environments-v", "/uv/cache/", "/pipx/.cache/",
    "/pipx/cache/",
)  # fmt: skip
HINT = (
    "install corral (in its clone: `pipx install .` or `uv tool install .`), or give --corral PATH"
)


def find_corral(chosen: str | None = None) -> str:
    """Return the path of corral: the path that the user chose, or else this process's own script,
    or else the script beside its Python.
    """
    if chosen is not None:
        path = os.path.abspath(os.path.expanduser(chosen))
        if not _is_program(path):
            raise SandboxError(f"{path} cannot be executed", hint="name corral's own program")
        return path
    beside = [os.path.join(os.path.dirname(sys.executable), name) for name in sorted(NAMES)]
    # Links are not resolved, because a link such as `~/.local/bin/corral` still works after an
    # upgrade has moved the program.
    for path in (os.path.abspath(sys.argv[0]), *beside):
        if is_corral(path) and _is_program(path):
            _refuse_temporary(path)
            return path
    raise SandboxError("corral cannot find its own program", hint=HINT)


def _refuse_temporary(path: str) -> None:
    for found in (path, os.path.realpath(path)):
        slashed = found.replace("\\", "/").lower()
        in_cache = any(part in slashed for part in CACHES)
        if in_cache or any(is_inside(found, directory) for directory in _temporary_directories()):
            raise SandboxError(
                f"{path} is in a temporary directory, so a client may not find it later", hint=HINT
            )


def _temporary_directories() -> list[str]:
    named = [os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
    return [*filter(os.path.isabs, named), "/tmp", "/var/tmp"]  # noqa: S108 - to keep out of them


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def is_corral(command: str) -> bool:
    """Return whether a command is named like corral. It may still be another program."""
    return command.replace("\\", "/").rpartition("/")[2].lower() in NAMES


def is_same_program(command: str, corral: str) -> bool:
    """Return whether a command, looked up on this process's PATH, is the program at the path
    `corral`.
    """
    try:
        return command == corral or os.path.samefile(which(command) or command, corral)
    except OSError:
        return False
