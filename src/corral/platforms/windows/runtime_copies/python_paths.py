"""Files of Python's that name directories: settings of virtual environments, editable installs.

In a copy they have to name the copies of these directories.
"""

from __future__ import annotations

import ntpath
import os

from corral.directories import directories
from corral.errors import PolicyError
from corral.paths.windows import folded, is_inside
from corral.platforms.windows.environment import interpreter
from corral.platforms.windows.files.granted_tree import reaching
from corral.platforms.windows.runtime_copies import store as runtimes
from corral.programs import windows_resolve
from corral.programs.windows_needed_files import is_pointer
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.platforms.windows.runtime_copies.copy import Listing
    from corral.platforms.windows.runtime_copies.store import Store, Tree
    from corral.programs.model import Program


SITE = "Lib\\site-packages"
SETTINGS = "pyvenv.cfg"


def find(listing: Listing) -> tuple[str, ...]:
    """Files of Python's that name directories: settings of environments, editable installs."""
    found = []
    for name, _, _ in listing.files:
        above, _, last = name.rpartition("\\")
        site = above.lower().endswith(SITE.lower()) and is_pointer(last)
        if last.lower() == SETTINGS or site:
            found.append(name)
    return tuple(found)


def texts(
    one: Tree, names: Sequence[str], made: Sequence[Tree], settings: str, base: str
) -> tuple[tuple[str, str], ...]:
    """What becomes of the pointers. The settings of the environment in use name its base in words
    that may lead there through a link, so they are not only searched for its path.
    """
    found: list[tuple[str, str]] = []
    for name in names:
        path = ntpath.join(one.source, name)
        text = text_of(path)
        changed = repointed(text, made)
        if folded(path) == folded(settings):
            changed = with_home(changed, base)
        found += [(name, changed)] if changed != text else []
    return tuple(found)


def with_home(text: str, base: str) -> str:
    lines = [line for line in text.splitlines() if line.partition("=")[0].strip().lower() != "home"]
    return "\n".join((f"home = {base}", *lines, ""))


def repointed(text: str, made: Sequence[Tree]) -> str:
    """With the copies' paths, as they are and as Python writes them in its strings."""
    for one in sorted(made, key=lambda one: -len(one.source)):
        text = _replaced(text, one.source, one.staged)
        text = _replaced(text, *(path.replace("\\", "\\\\") for path in (one.source, one.staged)))
    return text


def _replaced(text: str, old: str, new: str) -> str:
    """Where the old path stands whole, or something below it; in any case of letters."""
    lower, wanted = folded(text), folded(old)
    parts, at = [], 0
    while (found := lower.find(wanted, at)) >= 0:
        end = found + len(old)
        whole = text[end : end + 1] in {"", "\\", "/", "'", '"', "\r", "\n", ";"}
        parts += [text[at:found], new if whole else text[found:end]]
        at = end
    return "".join((*parts, text[at:]))


def text_of(path: str) -> str:
    try:
        with open(reaching(path), encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except OSError:
        return ""


STORE_APPS = "\\windowsapps\\"


def copies(home: str) -> Store:
    """Of the interpreter that runs corral, without what is installed in it: what corral itself runs
    inside needs the standard library alone. SandboxError for one that cannot be copied.
    """
    path = interpreter()
    if STORE_APPS in path.lower():
        raise PolicyError(
            f"{path} came from the Store, and its files cannot be copied",
            hint=windows_resolve.STORE,
        )
    program = windows_resolve.resolve(
        [path], environment=os.environ, cwd=os.path.dirname(path), home=home, subprocess=False
    )
    return runtimes.plan(alone(program), directory=store(), without=(SITE,))


def alone(program: Program) -> Program:
    """Without the projects that were installed into it as links."""
    rows = zip(program.reads, program.why, program.seen, strict=True)
    reads, why, seen = zip(*(row for row in rows if is_inside(program.real, row[0])), strict=True)
    return replace(program, reads=reads, why=why, seen=seen)


def store() -> str:
    return os.path.join(directories().cache, "store")


def journals() -> str:
    return os.path.join(directories().state, "grants")


def local(home: str) -> str:
    return os.environ.get("LOCALAPPDATA", "") or f"{home}\\AppData\\Local"
