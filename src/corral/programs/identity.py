"""Decide what identifies a server: its command and, if the command may start another server in
another directory, its start directory.
"""

from __future__ import annotations

import os

from corral.paths.native import is_inside
from corral.programs.model import LAUNCHER
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.programs.model import Program

ENDINGS = ("", ".py", ".js", ".cjs", ".mjs", ".ts", "/__init__.py", "/__main__.py", "/index.js")
"""What follows a name in the path of the file that Python or Node loads for it."""


def with_directory(program: Program, *, cwd: str) -> Program:
    """Return the program with `directory` and `home_per_directory` set. `cwd` is the directory in
    which the command was typed. The start directory is `program.cwd`, or "" if the target cannot
    see it.

    - If the command may start another server in another directory, as `python -m NAME` may,
      `directory` is the start directory, and the server keeps a separate home for each one. The
      same is true of a launcher if one of its arguments names a file in the start directory.
    - If the command names its program or file by a relative path, `directory` is `cwd`. The server
      has one home, because the home is identified by the absolute path.
    - Otherwise `directory` is "".
    """
    own, visible = program.own_file, program.cwd
    if visible and not own and not program.server:
        return replace(program, directory=visible, home_per_directory=True)
    if visible and any(_names_code(word, visible) for word in program.argv[1:]):
        above, name = os.path.split(own)
        if program.server or not is_inside(os.path.join(os.path.realpath(above), name), visible):
            return replace(program, directory=visible, home_per_directory=True)
    relative = not program.server and _is_relative(program, cwd)
    return replace(program, directory=os.path.realpath(cwd) if relative else "")


def _names_code(word: str, directory: str) -> bool:
    """Return whether a word names a file by its path relative to a directory, as do `server.py`,
    `--require=./index` (a module without its ending) and `main:app`.
    """
    texts = [text for part in (word, word.partition("=")[2]) for text in (part, *part.split(":"))]
    names = {os.path.normpath(text) for text in texts if text and not os.path.isabs(text)}
    paths = (
        os.path.join(directory, name + end)
        for name in names.difference({os.curdir, os.pardir})
        for end in ENDINGS
    )
    return any(map(os.path.isfile, paths))


def _is_relative(program: Program, cwd: str) -> bool:
    """Return whether the typed command names its program or the server's own file by a relative
    path.
    """
    first, *rest = program.typed or ("",)
    paths = (os.path.normpath(os.path.join(cwd, word)) for word in rest if not os.path.isabs(word))
    is_named = program.own_file and os.path.normpath(program.own_file) in paths
    return bool(is_named) or bool(os.path.dirname(first) and not os.path.isabs(first))


def _find_environment(program: Program) -> str:
    """Return the interpreter of the virtual environment that the program belongs to, or ""."""
    from corral.programs.arguments import detect_kind
    from corral.programs.runtimes import find_venv

    launcher = dict(program.environment).get(LAUNCHER, "")
    if launcher or detect_kind(program.path, program.real) != "python":
        return launcher
    return program.path if find_venv(program.path)[1] else ""


def home_words(program: Program) -> tuple[str, ...]:
    """Return the words that identify the home that a server keeps between runs. All versions of a
    package are one server. The modules of two virtual environments are two servers, even if both
    environments belong to the same Python.
    """
    file = "" if program.own_file else _find_environment(program)
    words = program.server or (file or program.real or program.path, *program.argv[1:])
    # The first word of a command is never empty, so no other command has these words.
    return ("", program.directory, *words) if program.home_per_directory else words
