"""Find the script of a command if it does not exist on the host."""

from __future__ import annotations

import os

from corral.programs.runtimes import CODE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.programs.model import Program


def find_missing_script(argv: Sequence[str], directory: str = "") -> str:
    """Return the path of the first script among the arguments of a command if it does not exist,
    otherwise "".

    Without the `directory` in which the command starts, a relative script does not count.
    """
    script = next(filter(_may_be_script, argv[1:]), "")
    if not script or not (directory or os.path.isabs(script)):
        return ""
    path = os.path.normpath(os.path.join(directory, script))
    return "" if os.path.lexists(path) else path


def find_missing_script_of(program: Program, rest: Sequence[str]) -> str:
    """Return the missing script of a program that has run, or "".

    `rest` are the words that the user typed. If they are not the command itself, as in
    CLIENT:SERVER, the command may have started in another directory than corral.
    """
    directory = ""
    if program.typed == tuple(rest):
        try:
            directory = os.getcwd()
        except OSError:
            pass  # the directory was removed
    return find_missing_script(program.typed, directory) or find_missing_script(program.argv)


def describe_missing_script(path: str) -> str:
    directory, name = os.path.split(path)
    return f"{name} does not exist in {directory}"


def _may_be_script(word: str) -> bool:
    if word.startswith("-") or "://" in word or "${" in word or not word.isprintable():
        return False
    return word.lower().endswith(CODE)
