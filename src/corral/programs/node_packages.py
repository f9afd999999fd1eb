"""Collect the `node_modules` directories that a script can load packages from, and the packages
that are symlinked into them.
"""

from __future__ import annotations

import os

from corral.paths.posix import is_inside
from corral.programs.needed_files import is_system
from corral.programs.scope import MAX_REFUSED
from corral.safe_text import shell_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.programs.needed_files import NeededFiles


def bind_packages(needed: NeededFiles, directory: str, top: str) -> None:
    """Bind the packages that a script in `directory` can load. `top` is the server's own root."""
    bind_node_modules(needed, directory, top, set())
    _note_packages_above(needed, os.path.dirname(top))


def bind_node_modules(needed: NeededFiles, directory: str, top: str, passed: set[str]) -> None:
    """Bind each `node_modules` from `directory` up to `top`, because node searches all of them for
    packages. Also bind packages that are symlinked into them.

    Skip the directories in `passed`, which were already searched, and add the new ones to it.
    """
    top = top.removesuffix("/node_modules")
    while directory not in passed:
        passed.add(directory)
        modules = f"{directory}/node_modules"
        if os.path.isdir(modules) and not is_system(modules):
            real = os.path.realpath(modules)
            if real == modules or os.path.basename(real) == "node_modules":
                needed.follow(modules)
                if not needed.scope.is_granted(real):
                    needed.bind(real, "packages that the server can load")
                bind_linked_packages(needed, real, passed)
        if directory == top or needed.is_shared(directory):
            return
        directory = os.path.dirname(directory)


def _note_packages_above(needed: NeededFiles, directory: str) -> None:
    while directory and not needed.is_shared(directory):
        modules = f"{directory}/node_modules"
        if os.path.isdir(modules) and not needed.covers(modules):
            if not needed.scope.is_granted(os.path.realpath(modules)):
                text = f"the server cannot read {modules}, which is above its own files"
                hint = f"if the server needs these packages: --read {shell_word(modules)}"
                needed.notes.append(f"{text}; {hint}")
            return
        directory = os.path.dirname(directory)


def bind_linked_packages(needed: NeededFiles, modules: str, passed: set[str]) -> None:
    """Bind the packages to which symlinks in `modules` lead. `npm link` and workspaces
    create such symlinks. If the target must not read a package, record it as refused.
    """
    for entry in _list_package_links(modules):
        if len(needed.scope.refused) > MAX_REFUSED:
            return
        real = needed.real_path(entry)
        root, inside, _ = real.partition("/node_modules/")
        wanted = f"{root}/node_modules" if inside else real
        if not real or needed.covers(real) or not os.path.isfile(f"{real}/package.json"):
            continue
        if needed.is_shared(wanted):
            continue
        needed.follow(entry)
        scope = needed.scope
        root = next((root for root in (*scope.roots, *scope.granted) if is_inside(real, root)), "")
        if not root:
            scope.refuse(wanted, entry)
        elif not scope.is_granted(real):
            needed.bind(wanted, "a linked package")
        bind_node_modules(needed, real, root or wanted, passed)


def _list_package_links(modules: str) -> Iterator[str]:
    try:
        with os.scandir(modules) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_symlink():
                yield entry.path
            elif entry.name.startswith("@") and entry.is_dir():
                with os.scandir(entry.path) as scoped:
                    yield from [item.path for item in scoped if item.is_symlink()]
    except OSError:
        return
