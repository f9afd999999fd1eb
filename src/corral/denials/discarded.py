"""Describe in one line the files that were discarded after a run, with the flags that keep them."""

import os
from collections.abc import Callable, Sequence

from corral.denials.records import MAX_TEXT_LENGTH, Discarded
from corral.safe_text import MASK, shell_word

MAX_FLAGS = 3
SHARED = frozenset((
    "~", "~/.local/bin", "~/.local/lib", "~/.local/share", "~/.local/state", "~/Desktop",
    "~/Documents", "~/Downloads",
))  # fmt: skip


def describe_discarded(
    rows: Sequence[Discarded],
    *,
    home: str,
    whole: bool,
    is_sensitive: Callable[[str, str], bool] = lambda *_: False,
) -> str:
    """Return one line that names the discarded files, and the flags that would keep them.

    The paths in the flags are below `home`, the user's home directory on the host. The line
    suggests no flag for a sensitive path. `whole` is False if `rows` does not list all discarded
    files.
    """
    first = rows[0].path[:MAX_TEXT_LENGTH]
    more = "" if len(rows) == 1 else f" and {len(rows) - 1} more"
    more += "" if whole else " (and others)"
    size = sum(row.bytes for row in rows)
    text = f"discarded after the run: {first}{more} ({size} bytes)"
    # The target chooses the paths, so suggest no flag for a path that is too long to check by eye.
    # A path with a masked secret is not a real path, so it gets no flag either.
    short = [
        row
        for row in rows
        if len(row.path) <= MAX_TEXT_LENGTH
        and MASK not in row.path
        and not is_sensitive(home + row.path[1:], home)
    ]
    return f"{text}; {_keep(short, home)}" if short else text


def _keep(rows: Sequence[Discarded], home: str) -> str:
    """Return the flags that would keep the files. If the flags name paths that do not exist on the
    host, also return the commands that create these paths.
    """
    granted = list(dict.fromkeys(map(_granted, rows)))[:MAX_FLAGS]
    flags = " ".join(f"--write ~/{shell_word(path)}" for path, _ in granted)
    wanted = [one for path, is_file in granted for one in _commands(path, is_file=is_file)]
    missing = [
        f"{make} ~/{shell_word(path)}"
        for make, path in dict.fromkeys(wanted)
        if not os.path.lexists(os.path.join(home, path))
    ]
    if not missing:
        return f"{flags} keeps it"
    return f"to keep it: `{'; '.join(missing)}`, then {flags}"


def _commands(path: str, *, is_file: bool) -> list[tuple[str, str]]:
    """Return the commands that create a path, each with its argument."""
    if not is_file:
        return [("mkdir -p", path)]
    return [("mkdir -p", os.path.dirname(path)), ("touch", path)]


def _granted(row: Discarded) -> tuple[str, bool]:
    """Return the path that has to be granted to keep a file. The path is relative to the home
    directory. Also return whether it is the path of the file itself.

    Usually the file's directory is granted. In the home directory and in directories that programs
    share (~/.config, ~/.local/share), only the file is granted. Otherwise the target could create
    files there that other programs run.
    """
    parent = row.path.rpartition("/")[0]
    shared = parent in SHARED or (parent.count("/") == 1 and parent.startswith("~/."))
    return (row.path if shared else parent)[2:], shared
