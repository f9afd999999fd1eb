"""Choose another working directory for a Python server whose `.env` is hidden.

Many Python servers read a `.env` file in their working directory, and exit if it exists but cannot
be read. For example, FastMCP before version 2 of `mcp` does this with pydantic-settings. Seatbelt
can deny a file, but cannot show an empty one in its place. So corral starts such a server in its
private home directory, unless its command needs the working directory.
"""

from __future__ import annotations

import os
import sys
from itertools import takewhile

from corral.platforms.macos.mechanisms import seatbelt_paths, seatbelt_profile
from corral.programs.arguments import detect_kind
from corral.safe_text import shell_word

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.platforms.macos.mechanisms.seatbelt_profile import View
    from corral.programs.model import Program

NAME = ".env"


def choose(view: View, program: Program, private: str) -> tuple[str, list[str]]:
    """Return the directory that the server starts in instead of `program.cwd`, and warnings for the
    user.

    The directory is "" if the server starts in `program.cwd`, because no `.env` is hidden there, or
    because the command needs this directory.
    """
    path = f"{program.cwd}/{NAME}"
    is_python = detect_kind(program.path, program.real) == "python"
    if not is_python or not program.cwd or not os.path.lexists(path):
        return "", []
    if not seatbelt_profile.hides_environment_file(view, seatbelt_paths.to_kernel_path(path)):
        return "", []
    readable = f"`--read {shell_word(path)}` lets the server read this file"
    if uses_directory(program.argv[1:], program.cwd):
        return "", [f"{path} is hidden, and many servers exit if they cannot read it; {readable}"]
    return private, [
        f"{path} is hidden, so the server starts in its private home directory; {readable}"
    ]


def uses_directory(words: Sequence[str], directory: str) -> bool:
    """Return whether the command needs `directory` as its working directory.

    This is so if an argument names a file or module relative to it, and for the option `-c`,
    because the code after `-c` may import a module from the working directory.
    """
    options = takewhile(lambda word: word.startswith("-"), words)
    return "-c" in options or any(
        name and not name.startswith("/") and os.path.lexists(os.path.join(directory, name))
        for word in words
        for name in _names(word)
    )


def _names(word: str) -> Sequence[str]:
    module = word.partition(".")[0]
    return word, word.partition("=")[2], module, f"{module}.py" if module else ""
