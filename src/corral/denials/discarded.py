"""Describe in one line the files that a run has discarded, with the flags that keep them."""

import os
from collections.abc import Callable, Sequence

from corral.denials.records import MAX_TEXT_LENGTH, Discarded
from corral.safe_text import MASK, shell_word

MAX_FLAGS = 3


def describe_discarded(
    rows: Sequence[Discarded],
    *,
    home: str,
    whole: bool,
    is_sensitive: Callable[[str, str], bool] = lambda *_: False,
) -> str:
    """Return the line. `home` is the user's home, where the files would be without a sandbox. No
    flag is suggested for a path that is sensitive.
    """
    first = rows[0].path[:MAX_TEXT_LENGTH]
    more = "" if len(rows) == 1 else f" and {len(rows) - 1} more"
    more += "" if whole else " (and others)"
    size = sum(row.bytes for row in rows)
    text = f"discarded after the run: {first}{more} ({size} bytes)"
    # The target chose the names. A grant for a very long name is not suggested.
    # A path with a masked secret names no file.
    short = [
        row
        for row in rows
        if len(row.path) <= MAX_TEXT_LENGTH
        and MASK not in row.path
        and not is_sensitive(home + row.path[1:], home)
    ]
    return f"{text}; {_keep(short, home)}" if short else text


def _keep(rows: Sequence[Discarded], home: str) -> str:
    """Return the flags, and the commands that create the missing paths for them."""
    granted = list(dict.fromkeys(map(_granted, rows)))[:MAX_FLAGS]
    flags = " ".join(f"--write {word}" for word, _ in granted)
    missing = [f"{make} {word}" for word, make in granted if not _exists(word, home)]
    if not missing:
        return f"{flags} keeps it"
    return f"to keep it: `{'; '.join(missing)}`, then {flags}"


def _granted(row: Discarded) -> tuple[str, str]:
    """Return the narrowest grant that keeps a file, and the command that creates its path.

    The grant is the file itself if its directory is the home, or one that programs share, such as
    ~/.config.
    """
    parent = row.path.rpartition("/")[0]
    shared = parent == "~" or (parent.count("/") == 1 and parent.startswith("~/."))
    path, make = (row.path, "touch") if shared else (parent, "mkdir -p")
    return f"~/{shell_word(path[2:])}", make


def _exists(word: str, home: str) -> bool:
    return os.path.lexists(os.path.join(home, word[2:].strip("'")))
