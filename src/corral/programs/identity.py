"""Decide what identifies a server: its command and, if the command may start another server in
another directory, its start directory.
"""

from __future__ import annotations

import os

from corral.paths.native import is_inside
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.programs.model import Program


def with_directory(program: Program, *, cwd: str) -> Program:
    """Return a program with the directory that belongs to its identity. `cwd` is the directory in
    which the command was typed.

    The server's kept home does not depend on the directory if the command names the server's own
    file, because corral makes the path of this file absolute. But a file of another server, such as
    a launcher, may start a file that another word names in the start directory.
    """
    own, visible = program.own_file, program.cwd
    if not own and not program.server:
        return replace(program, directory=visible, home_per_directory=bool(visible))
    if visible and any(_names_file(word, visible) for word in program.argv[1:]):
        above, name = os.path.split(own)
        if program.server or not is_inside(os.path.join(os.path.realpath(above), name), visible):
            return replace(program, directory=visible, home_per_directory=True)
    relative = not program.server and _is_relative(program)
    return replace(program, directory=os.path.realpath(cwd) if relative else "")


def _names_file(word: str, directory: str) -> bool:
    """Return whether a word names a file by its path relative to a directory, as do `server.py`,
    `--require=./index.js` and `server.py:app`.
    """
    texts = [text for text in (word, word.partition("=")[2]) if text and not os.path.isabs(text)]
    names = {name for text in texts for name in (text, text.partition(":")[0])}
    return any(os.path.isfile(os.path.join(directory, name)) for name in names)


def _is_relative(program: Program) -> bool:
    """Return whether the typed command names the server's own file by a relative path."""
    first, *rest = program.typed or ("",)
    words = [*([first] if os.path.dirname(first) else []), *rest]
    own = os.path.basename(program.own_file)
    return any(os.path.basename(word) == own and not os.path.isabs(word) for word in words)


def home_words(program: Program) -> tuple[str, ...]:
    """Return the words that identify a server's kept home. All versions of a package are one
    server.
    """
    words = program.server or (program.real or program.path, *program.argv[1:])
    # The first word of a command is never empty, so no other command has these words.
    return ("", program.directory, *words) if program.home_per_directory else words
