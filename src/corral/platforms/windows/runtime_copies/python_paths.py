"""Change paths in Python's own files, so that they refer to the copies in the store.

These files are the settings of virtual environments (`pyvenv.cfg`) and the files that editable
installs create in site-packages.
"""

import ntpath
from collections.abc import Sequence

from corral.paths.windows import extended_path, fold_path
from corral.platforms.windows.files.file_trees import Listing, TreeCopy
from corral.programs.windows_needed_files import is_pointer

SITE = "Lib\\site-packages"
SETTINGS = "pyvenv.cfg"


def find(listing: Listing) -> tuple[str, ...]:
    """Return the names of the listed files in which paths may have to be replaced."""
    found = []
    for name, _, _ in listing.files:
        above, _, last = name.rpartition("\\")
        site = above.lower().endswith(SITE.lower()) and is_pointer(last)
        if last.lower() == SETTINGS or site:
            found.append(name)
    return tuple(found)


def changed_texts(
    one: TreeCopy, names: Sequence[str], copies: Sequence[TreeCopy], settings: str, base: str
) -> tuple[tuple[str, str], ...]:
    """Return (name, new text) for each of the files `names` whose text changes.

    `settings` is the path of pyvenv.cfg. In this file the key `home` is always set to `base`, the
    directory of the copied interpreter. `replace_paths` is not enough for this key: if the value is
    a path through a link, `replace_paths` does not recognize it.
    """
    found: list[tuple[str, str]] = []
    for name in names:
        path = ntpath.join(one.source, name)
        text = read_text(path)
        changed = replace_paths(text, copies)
        if fold_path(path) == fold_path(settings):
            changed = with_home(changed, base)
        found += [(name, changed)] if changed != text else []
    return tuple(found)


def with_home(text: str, base: str) -> str:
    lines = [line for line in text.splitlines() if line.partition("=")[0].strip().lower() != "home"]
    return "\n".join((f"home = {base}", *lines, ""))


def replace_paths(text: str, copies: Sequence[TreeCopy]) -> str:
    """Replace each source's path in a text with the path of its copy. Paths with doubled
    backslashes are replaced too, and stay doubled.
    """
    for one in sorted(copies, key=lambda one: -len(one.source)):
        text = _replace(text, one.source, one.staged)
        text = _replace(text, *(path.replace("\\", "\\\\") for path in (one.source, one.staged)))
    return text


def _replace(text: str, old: str, new: str) -> str:
    """Replace a path, alone or as the first directories of a longer path. Ignore case."""
    lower, wanted = fold_path(text), fold_path(old)
    parts, at = [], 0
    while (found := lower.find(wanted, at)) >= 0:
        end = found + len(old)
        whole = text[end : end + 1] in {"", "\\", "/", "'", '"', "\r", "\n", ";"}
        parts += [text[at:found], new if whole else text[found:end]]
        at = end
    return "".join((*parts, text[at:]))


def read_text(path: str) -> str:
    try:
        with open(
            extended_path(path), encoding="utf-8", errors="surrogateescape", newline=""
        ) as file:
            return file.read()
    except OSError:
        return ""
