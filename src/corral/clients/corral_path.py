"""Which corral a configuration should start: an absolute path that will still be there tomorrow."""

from __future__ import annotations

import os
import sys

from corral.errors import SandboxError
from corral.paths.native import is_inside

NAMES = frozenset(("corral", "corral.exe"))
# Directories that `uvx` and `pipx run` fill and clean as they like.
PASSING = (
    "/uv/archive-v", "/uv/builds-v", "/uv/environments-v", "/uv/cache/", "/pipx/.cache/",
    "/pipx/cache/",
)  # fmt: skip
HINT = "install it (`pipx install mcp-corral`, `uv tool install mcp-corral`), or say --corral PATH"


def executable(told: str | None = None) -> str:
    """`told` by the user; or what this process was started as; or the script beside its Python.

    Never resolved: `~/.local/bin/corral` stays where it is when what it leads to is upgraded.
    """
    if told is not None:
        path = os.path.abspath(os.path.expanduser(told))
        if not _runs(path):
            raise SandboxError(f"{path} is no program that can be started")
        return path
    beside = [os.path.join(os.path.dirname(sys.executable), name) for name in sorted(NAMES)]
    for path in (os.path.abspath(sys.argv[0]), *beside):
        if os.path.basename(path).lower() in NAMES and _runs(path):
            return _lasting(path)
    raise SandboxError("corral cannot tell where its own program is", hint=HINT)


def _lasting(path: str) -> str:
    for place in (path, os.path.realpath(path)):
        plain = place.replace("\\", "/").lower()
        if any(part in plain for part in PASSING) or _below(place, _temporary()):
            raise SandboxError(f"{path} is in a directory that is emptied now and then", hint=HINT)
    return path


def _temporary() -> list[str]:
    named = [os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
    return [*filter(os.path.isabs, named), "/tmp", "/var/tmp"]  # noqa: S108 - to keep out of them


def _below(path: str, directories: list[str]) -> bool:
    return any(is_inside(path, directory) for directory in directories)


def _runs(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def is_corral(command: object) -> bool:
    if not isinstance(command, str):
        return False
    return command.replace("\\", "/").rpartition("/")[2].lower() in NAMES


def is_same(command: str, corral: str) -> bool:
    """Anything can be called corral: a name alone is looked up on the PATH of whoever asks."""
    from shutil import which

    try:
        return command == corral or os.path.samefile(which(command) or command, corral)
    except OSError:
        return False
