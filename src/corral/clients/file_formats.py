"""The notations of clients' files, and what wrapping needs to know of each."""

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from corral.errors import SandboxError
from corral.formats.positions import Splice, Value


class Format(Protocol):
    """A notation of configuration files: `jsonc`, `toml` or `yaml`."""

    def read(self, text: str, wanted: Callable[[tuple[str, ...]], bool] = ...) -> Value:
        """Return every value with its position; raise BrokenFileError.

        A notation may return values that are not `wanted` without positions inside them.
        """

    def load(self, text: str) -> object:
        """Return the same values from an independent parser, to compare the two."""

    def quote(self, text: str) -> str: ...

    def member(self, text: str, table: Value, after: Value, name: str, words: Sequence[str]) -> str:
        """Return the text to insert after the value `after` so that `table` has one more list."""

    def prepend(self, text: str, items: Value, drop: int, words: Sequence[str]) -> Splice:
        """Replace the first `drop` items by `words`."""

    def without(self, text: str, items: Value, drop: int) -> Splice:
        """Remove the first `drop` items."""


def load_format(path: str) -> Format | None:
    """Choose the format by the ending of a file name; import it only when a file needs it."""
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
            missing = f"{path} is YAML, and PyYAML is not here"
            raise SandboxError(missing, hint="pip install pyyaml") from None
        return yaml
    return None
