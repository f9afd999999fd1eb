"""Decide which other files become readable because a server's own files refer to them.

A symlink, a `#!` line, a `.pth` line, a `pyvenv.cfg` or an entry in `node_modules` may have been
written by the server's author, or by a target in an earlier run. So the file that it refers to
becomes readable only if it is in the server's root, a runtime or a grant. All other files are
refused together, in one error at the end, which contains the flags that would allow them.
"""

from __future__ import annotations

import os

from corral.errors import UnchosenReadsError
from corral.paths.posix import is_below, is_inside
from corral.programs.arguments import detect_kind
from corral.programs.needed_files import is_program, is_shared, is_system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corral.policy.model import Grant
    from corral.programs.needed_files import Caller, Executable

PACKAGE_FILES = ("package.json", "pyproject.toml")
OTHER_MARKS = ("setup.py", "setup.cfg", "manifest.json", "corral.toml", "corral.json")
MARKS = (*PACKAGE_FILES, *OTHER_MARKS, "pyvenv.cfg", "node_modules")
# Administrators and package managers install programs below these directories.
SYSTEM_PREFIXES = (
    "/opt", "/snap", "/home/linuxbrew/.linuxbrew", "/Library/Developer", "/Library/Frameworks",
    "/Applications/Xcode.app",
)  # fmt: skip

# Version managers keep interpreters below these directories of HOME, or below the directory that an
# environment variable in MANAGED_BY_VARIABLE names.
MANAGED_IN_HOME = (
    ".asdf/installs", ".bun", ".deno", ".fnm/node-versions", ".local/share/fnm/node-versions",
    ".local/share/mise/installs", ".local/share/pdm/python", ".local/share/pnpm/nodejs",
    ".local/share/rtx/installs", ".local/share/uv/python", ".nodenv/versions", ".nvm/versions",
    ".pixi/envs", ".proto/tools", ".pyenv/versions", ".rye/py", ".sdkman/candidates",
    ".volta/tools/image", "Library/Application Support/fnm/node-versions",
    "Library/Application Support/uv/python", "anaconda3", "mambaforge", "micromamba",
    "miniconda3", "miniforge3",
)  # fmt: skip
MANAGED_BY_VARIABLE = {
    "ASDF_DATA_DIR": "/installs", "FNM_DIR": "/node-versions", "MAMBA_ROOT_PREFIX": "",
    "MISE_DATA_DIR": "/installs", "NVM_DIR": "/versions", "PYENV_ROOT": "/versions",
    "UV_PYTHON_INSTALL_DIR": "", "VOLTA_HOME": "/tools/image",
}  # fmt: skip
MAX_REFUSED = 100  # after this many refused paths, no more linked packages are inspected
RECEIVING = frozenset({"downloads", "desktop", "tmp"})
# If a hint would name more paths than this, and all are in pnpm's global store, the hint names the
# directory that contains them all.
MAX_NAMED = 3


class Scope:
    """The directories and files that the target may read: the server's `roots`, grants, and
    runtimes.

    - `named` is the server's directory if the user named a directory instead of a command. In this
      case the command comes from the server's author.
    - `by_grant` lists paths that only a grant makes readable.
    - `chosen` lists files outside the server's roots that the server's files name as programs or
      refer to through symlinks.
    - `refused` maps each path that the target may not read to the file that names it.
    """

    def __init__(
        self, caller: Caller, homes: set[str], *, root: str = "", grants: Iterable[Grant] = ()
    ) -> None:
        self.caller = caller
        self.homes = homes
        self.named = os.path.realpath(root) if root else ""
        self.roots = [self.named] if root else []
        files = [grant for grant in grants if grant.access != "socket"]
        self.granted = [grant.path for grant in files]
        self.writable = [grant.path for grant in files if grant.access == "write"]
        self.refused: dict[str, str] = {}
        self.by_grant: list[str] = []
        self.chosen: list[str] = []
        self._managed: tuple[str, ...] = ()
        self._path: tuple[str, ...] = ()

    def find_root(self, directory: str) -> str:
        """Return the root of the server that a directory belongs to, or '' if several servers share
        the directory.

        Directories above a write grant are ignored. Otherwise a target could remove a file such as
        package.json inside the grant, and a directory above the grant would then become the root.
        """
        if marked := self._find_marked_root(directory):
            return marked
        directory, packages, _ = f"{directory}/".partition("/node_modules/")
        if packages:
            return f"{directory}/node_modules"
        directory = directory.rstrip("/") or "/"
        above = os.path.dirname(directory)
        if os.path.basename(directory) == "bin" and not is_shared(above, self.homes):
            return above
        return "" if is_shared(directory, self.homes) else directory

    def _find_marked_root(self, directory: str) -> str:
        """Return the root that contains `directory`: the server's directory, a write grant or a
        project. Return '' if there is none.

        A directory is a project if it contains `.git`, a workspace file, or a file such as
        package.json.
        """
        tops = [top for top in (self.named, *sorted(self.writable)) if top]
        if top := next((top for top in tops if is_inside(directory, top)), ""):
            return top
        at = f"{directory}/".partition("/node_modules/")[0].rstrip("/") or "/"
        package = other = ""
        while not is_shared(at, self.homes):
            if os.path.lexists(f"{at}/.git") or _lists_package(at, package):
                return at
            if any(os.path.isfile(f"{at}/{name}") for name in PACKAGE_FILES):
                package = package or at
            elif any(os.path.isfile(f"{at}/{name}") for name in OTHER_MARKS):
                other = other or at
            at = os.path.dirname(at)
        return package or other

    def add_root(self, directory: str) -> None:
        if root := self.find_root(directory):
            self.roots.append(root)

    def cap(self, directory: str, place: str) -> str:
        """Return the grant or project inside `directory` that contains `place`, or `directory` if
        there is none. Callers bind the result instead of `directory`, so that no more than the
        grant or the project becomes readable.
        """
        root = self.find_grant(place) or self._find_marked_root(place)
        return root if root and is_below(root, directory) else directory

    def find_grant(self, real: str) -> str:
        """Return the grant that makes a path readable, or '' if it is readable without a grant.
        Call this only after `allows`, which records the paths that need a grant.
        """
        if not any(is_inside(real, path) for path in self.by_grant):
            return ""
        return next((path for path in self.granted if is_inside(real, path)), "")

    def is_granted(self, real: str) -> bool:
        return any(is_inside(real, path) for path in self.granted)

    def is_writable(self, real: str) -> bool:
        return any(is_inside(real, path) for path in self.writable)

    def allows(self, real: str, root: str = "") -> bool:
        own = any(is_inside(real, path) for path in (*self.roots, root) if path)
        if own or is_system(real):
            return True
        if self.is_granted(real):
            self.by_grant.append(real)
            return True
        return False

    def is_runtime(self, real: str) -> bool:
        """Return whether a file is an interpreter from a known source: PATH, the system, a version
        manager or corral.
        """
        from corral.programs.runtimes import find_own_python

        if not detect_kind(real, real) or not is_program(real) or self.is_writable(real):
            return False
        return self.is_managed(real) or self.is_on_path(real) or real == find_own_python()

    def is_managed(self, real: str) -> bool:
        """Return whether a path belongs to the system or to a version manager. A path to which the
        target may write does not count.
        """
        if not self._managed:
            own = managed_directories(self.caller.environment, self.homes)
            self._managed = (*SYSTEM_PREFIXES, *own)
        known = is_system(real) or any(is_below(real, place) for place in self._managed)
        return known and not self.is_writable(real)

    def is_on_path(self, path: str) -> bool:
        """Return whether a path is directly in a directory on PATH, or contains such a directory. A
        path to which the target may write does not count.
        """
        if not self._path:
            written = [entry.rstrip("/") for entry in self.caller.search_path()]
            self._path = (*written, *map(os.path.realpath, written))
        found = os.path.dirname(path) in self._path or any(is_inside(e, path) for e in self._path)
        return found and not self.is_writable(path)

    def check_word(self, path: str) -> None:
        """Check a program in a command from the server's manifest. Refuse a program that the target
        may not read, unless it is a runtime outside any virtual environment.
        """
        if not self.named:
            return
        parent, name = os.path.split(path)
        place = os.path.join(os.path.realpath(parent), name)
        if not self.allows(place):
            self._check_runtime(place, self.named)

    def check_link(self, link: str, real: str) -> None:
        """Refuse a symlink if it leads out of the root or the write grant that contains it, to a
        file that is neither granted nor a known runtime.

        Symlinks on PATH, of the system and of version managers are not checked. A symlink that is
        not in the root of any server is checked only in a directory such as Downloads.
        """
        if self.is_managed(link) or self.is_on_path(link):
            return
        root = self.find_root(os.path.dirname(link))
        if not root and not _receives_files(link):
            return
        if self.allows(real, root):
            return
        self.chosen.append(real)
        if not self.is_runtime(real):
            self.refuse(self.enclose(real), link)

    def check_runtime(self, named_by: str, real: str) -> None:
        """Raise UnchosenReadsError for an interpreter that the target may not read, unless it is a
        known runtime on this machine.
        """
        if not self.allows(real) and not self.is_runtime(real):
            self.refuse(self.enclose(real), named_by)
            self.raise_refused()

    def check_choice(self, path: str, by: Executable) -> None:
        """Refuse a program that one of the server's scripts names, if the program is outside the
        server's root and is neither granted nor a known runtime.
        """
        if is_system(by.real) or self.is_on_path(by.real):
            return
        root = self.find_root(os.path.dirname(by.real))
        parent, name = os.path.split(path)
        place = os.path.join(os.path.realpath(parent), name)
        # A script without a root is in a directory that several servers share. The user has put it
        # there, for example as a symlink in ~/bin, so it may name any program. But do not trust a
        # script that a target can write, or that may have come from the network.
        trusted = not root and not self.is_writable(by.real) and not _receives_files(by.real)
        if not trusted and not self.allows(place, root):
            self._check_runtime(place, by.path)

    def _check_runtime(self, place: str, named_by: str) -> None:
        """Refuse a program unless it is a runtime outside any virtual environment."""
        self.chosen.append(os.path.realpath(place))
        found = self.enclose(place)
        known = self.is_managed(place) or self.is_runtime(place)
        if os.path.isfile(f"{found}/pyvenv.cfg") or not known:
            self.refuse(found, named_by)

    def enclose(self, real: str) -> str:
        """Return the path to grant for a program or a package: its project if it has one, otherwise
        the root of its directory. In a directory that several servers share, return only the
        program itself.
        """
        above, modules, _ = f"{real}/".partition("/node_modules/")
        if modules:
            return f"{above}/node_modules"
        directory = at = real if os.path.isdir(real) else os.path.dirname(real)
        while not is_shared(at, self.homes):
            if any(os.path.lexists(f"{at}/{mark}") for mark in MARKS):
                return self.cap(at, directory)
            at = os.path.dirname(at)
        return real if is_shared(directory, self.homes) else self.find_root(directory)

    def refuse(self, wanted: str, named_by: str) -> None:
        if not self.is_granted(wanted):
            self.refused.setdefault(wanted, named_by)

    def raise_refused(self) -> None:
        """Raise one error for all refused paths. Its hint contains the flags that allow them."""
        if not self.refused:
            return
        import shlex

        from corral.safe_text import printable

        paths = [p for p in self.refused if not any(is_below(p, other) for other in self.refused)]
        if len(paths) > MAX_NAMED:
            common = os.path.commonpath(paths)
            # Suggest the common directory of many packages only in pnpm's global store. Elsewhere
            # a server could choose its symlinks so that the suggested grant becomes much too large.
            stored = "pnpm" in common and "/links/" in f"{common}/"
            paths = [common] if stored and not is_shared(common, self.homes) else paths
        first, by = next(iter(self.refused.items()))
        more = f" and {len(self.refused) - 1} more" if len(self.refused) > 1 else ""
        flags = " ".join(f"--read {shlex.quote(path)}" for path in paths)
        target = f"{printable(first)}{more}"
        what = f"{printable(by)} leads to {target}, which is neither part of the server nor granted"
        if by == first:
            what = f"{printable(by)} is neither a program nor granted"
        raise UnchosenReadsError(
            what,
            reads=paths,
            hint=f"to let the server read it, add {printable(flags)}",
        )


def managed_directories(environment: Mapping[str, str], homes: Iterable[str]) -> tuple[str, ...]:
    """Return the directories where version managers keep the user's interpreters."""
    return (
        *(f"{home}/{name}" for home in homes for name in MANAGED_IN_HOME),
        *(
            os.path.realpath(environment[name] + below)
            for name, below in MANAGED_BY_VARIABLE.items()
            if environment.get(name, "").startswith("/")
        ),
    )


def _receives_files(path: str) -> bool:
    """Return whether a path is directly in a directory such as Downloads or /tmp, where other
    programs put files that came from the network.
    """
    name = os.path.basename(os.path.dirname(path)).lower()
    return name in RECEIVING or os.path.dirname(path) in {"/tmp", "/var/tmp"}  # noqa: S108


def _lists_package(directory: str, package: str) -> bool:
    """Return whether a workspace file in a directory lists a package below this directory."""
    names = ("pnpm-workspace.yaml", *PACKAGE_FILES)
    if not package or not any(os.path.isfile(f"{directory}/{name}") for name in names):
        return False
    from corral.programs.workspaces import lists_package

    return lists_package(directory, package)
