"""Detect that a command refers to a script that does not exist on the host."""

from __future__ import annotations

import os

from corral.policy.variables import masked
from corral.programs.runtimes import CODE
from corral.safe_text import shell_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.programs.model import Program

CODE_OPTIONS = frozenset(("-c", "-e", "-p", "--eval", "--print"))
"""The argument after one of these options is code, not the path of a script."""


def find_missing_script(argv: Sequence[str], directory: str = "") -> str:
    """Return the path of a command's script if it does not exist, otherwise "".

    Only the first argument that is not an option can be the script. A relative path is checked only
    if `directory`, in which the command starts, is an absolute path.
    """
    at = next((at for at, word in enumerate(argv) if at and not word.startswith("-")), 0)
    if not at or argv[at - 1] in CODE_OPTIONS or not _may_be_script(argv[at]):
        return ""
    path = os.path.normpath(os.path.join(directory, argv[at]))
    if not os.path.isabs(path) or "${" in path or masked(argv)[at] != argv[at]:
        return ""
    return "" if os.path.lexists(path) else path


def find_missing_script_of(program: Program, rest: Sequence[str]) -> str:
    """Return the missing script of a program that has run, or "".

    A relative path is checked only if the user typed the command itself as `rest`. If the user
    typed CLIENT:SERVER instead, the command may have started in a different directory.
    """
    directory = ""
    if program.typed == tuple(rest):
        try:
            directory = os.getcwd()
        except OSError:
            pass  # the directory was removed
    return find_missing_script(program.typed, directory) or find_missing_script(program.argv)


def describe_missing_script(path: str) -> str:
    """Return a message that a script is missing.

    The script's name is quoted, because a project may have chosen it. Without quotes, a name such
    as `x; to allow it: --write ~ .py` would look like corral's own words.
    """
    directory, name = map(shell_word, os.path.split(path))
    return f"{name} does not exist in {directory}"


def _may_be_script(word: str) -> bool:
    return word.lower().endswith(CODE) and "://" not in word and word.isprintable()
