"""Define the operations that corral needs for each format of clients' configuration files, and
choose the format of a file.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from corral.errors import SandboxError
from corral.formats.positions import Splice, Value


class Format(Protocol):
    """A format of configuration files: `jsonc`, `toml` or `yaml`."""

    def read(self, text: str, wanted: Callable[[tuple[str, ...]], bool] = ...) -> Value:
        """Return each value with its position. Raise BrokenFileError if the text is invalid.

        `wanted` says for each key whether the positions of the values below it are needed. A format
        may leave out positions that are not needed.
        """

    def load(self, text: str) -> object:
        """Read the values with another parser, so that the result of `read` can be checked."""

    def quote(self, text: str) -> str: ...

    def member(self, text: str, table: Value, after: Value, name: str, words: Sequence[str]) -> str:
        """Return the text that, inserted after the value `after`, adds the key `name` with the
        list `words` to `table`.
        """

    def prepend(self, text: str, items: Value, drop: int, words: Sequence[str]) -> Splice:
        """Return the splice that replaces the first `drop` items of a list with `words`."""

    def without(self, text: str, items: Value, drop: int) -> Splice:
        """Return the splice that removes the first `drop` items of a list."""


def _installation(prefix: str) -> str:
    """Return the command that adds PyYAML to the environment in which corral is installed."""
    parts = os.path.normpath(prefix).split(os.sep)
    if "pipx" in parts:
        return "pipx inject mcp-corral pyyaml"
    if parts[-3:-1] == ["uv", "tools"]:
        return "in corral's clone: uv tool install '.[yaml]'"
    if "uv" in parts:
        return "uvx --with pyyaml mcp-corral ..."
    return f"{sys.executable} -m pip install pyyaml"


def identify(path: str) -> tuple[str, str]:
    """Return a file's real path and format, so that a file with several names is read only once.
    The format is included, because the same text can list different servers in YAML and in JSON.
    """
    ending = os.path.splitext(path)[1].lower()
    return os.path.realpath(path), ".json" if ending == ".jsonc" else ending


def load_format(path: str) -> Format | None:
    """Return the format for the extension of a file name, or None. Import only the module of this
    format.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending in {".json", ".jsonc"}:
        from corral.formats import jsonc

        return jsonc
    if ending == ".toml":
        from corral.formats import toml

        return toml
    if ending in {".yaml", ".yml"}:
        try:
            from corral.formats import yaml
        except ModuleNotFoundError:
            missing = f"{path} is YAML, and PyYAML is not installed"
            raise SandboxError(missing, hint=_installation(sys.prefix)) from None
        return yaml
    return None
