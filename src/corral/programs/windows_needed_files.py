r"""Collect the files that a command needs on Windows: its runtime and its server.

The collected paths are real paths, which are copied into corral's store (`runtime_copies`). As on
other systems, a directory such as a user's profile, `Documents` or a shared `bin` is not collected,
because it contains more than the files of one server. Windows' own directory need not be collected,
because every AppContainer can read it.
"""

from __future__ import annotations

import ntpath
from collections.abc import Mapping, Sequence

from corral.paths.windows import is_inside
from corral.policy.secret_files import is_near_secrets
from corral.programs import arguments
from corral.programs.windows_disk import Disk

PYTHON_MARKS = ("pyproject.toml", "setup.py", "setup.cfg")
NODE_MARKS = ("package.json", "node_modules")
SITE = ("Lib", "site-packages")
MARKS = (*NODE_MARKS, *PYTHON_MARKS, "manifest.json", "corral.toml", "corral.json")
SHARED_IN_HOME = (
    "Desktop", "Documents", "Downloads", "Pictures", "Music", "Videos", "OneDrive", "source",
    "source\\repos", "bin", "AppData", "AppData\\Local", "AppData\\LocalLow", "AppData\\Roaming",
    "AppData\\Local\\Programs", "AppData\\Local\\Temp", "AppData\\Roaming\\npm",
    "AppData\\Local\\Microsoft\\WindowsApps", "AppData\\Local\\Microsoft\\WinGet\\Links", ".local",
    ".local\\bin", ".cargo\\bin", "go\\bin", "scoop", "scoop\\shims", "scoop\\apps",
)  # fmt: skip
SYSTEM = ("PROGRAMFILES", "PROGRAMFILES(X86)", "PROGRAMW6432", "PROGRAMDATA", "PUBLIC")


class Needs:
    """Collects the files of a command in `reads`, each with the reason.

    If the user named a server's directory instead of a command, `root` is this directory. The
    command then comes from the server's author, who could name any of the user's files in it. So
    only `root` and runtimes are collected, and `outside` lists the other programs and scripts that
    the command names.
    """

    def __init__(
        self, disk: Disk, environment: Mapping[str, str], home: str, *, root: str = ""
    ) -> None:
        values = {name.upper(): value for name, value in environment.items()}
        self.disk = disk
        self.home = home
        self.root = disk.real(root) if root else ""
        self.outside: list[str] = []
        self.windows = values.get("SYSTEMROOT", "C:\\Windows")
        self.shared = {values[name] for name in SYSTEM if values.get(name)}
        self.reads: dict[str, str] = {}

    def forbids(self, directory: str) -> bool:
        parent = ntpath.dirname(directory)
        if parent == directory or parent.lower() == ntpath.dirname(self.home).lower():
            return True
        in_home = [ntpath.join(self.home, name) for name in SHARED_IN_HOME]
        shared = (self.home, *self.shared, *in_home)
        if is_inside(directory, self.windows) or any(is_inside(one, directory) for one in shared):
            return True
        if not is_inside(directory, self.home):
            return False
        below = directory[len(self.home) :].strip("\\").replace("\\", "/")
        return is_near_secrets(below, "windows")

    def covers(self, path: str) -> bool:
        return is_inside(path, self.windows) or any(is_inside(path, root) for root in self.reads)

    def take(self, path: str, why: str) -> None:
        if not self.covers(path):
            self.reads = {one: text for one, text in self.reads.items() if not is_inside(one, path)}
            self.reads[path] = why

    def runtime(self, program: str, kind: arguments.Kind, venv: str) -> None:
        """Collect the files of the program that starts the server.

        For Python and Java, collect the whole prefix. For other runtimes, or if `forbids` rejects
        the prefix, collect only the executable. For Python, also collect the virtual environment
        and the editable installs. If `kind` is "", the program is not a runtime, so it is the
        server itself.
        """
        if venv:
            self.take(self.disk.real(venv), "the virtual environment")
        prefix = ntpath.dirname(program)
        if kind == "java":
            prefix = ntpath.dirname(prefix)  # java.exe is in the prefix's `bin` directory
        if kind in {"python", "java"} and not self.forbids(prefix):
            self.take(prefix, f"the prefix of {kind}")
        elif kind:
            self.take(program, f"the program {kind}")
        else:
            self.server(program, kind)

        if kind == "python":
            self._editables(venv or prefix)

    def _editables(self, prefix: str) -> None:
        site = ntpath.join(prefix, *SITE)
        for name in self.disk.names(site):
            if is_pointer(name):
                text = self.disk.read(ntpath.join(site, name)).decode("utf-8", "replace")
                for path in pointer_targets(name, text):
                    real = self.disk.real(path)
                    project = self.project(real, PYTHON_MARKS)
                    allowed = not self.root or is_inside(project, self.root)
                    if project and allowed and self.disk.kind(real):
                        self.take(project, f"an editable install, {name}")

    def server(self, path: str, kind: arguments.Kind) -> None:
        real = self.disk.real(path)
        found = self.disk.kind(real)
        if not found or self.covers(real):
            return
        if self.root:
            if is_inside(real, self.root):
                self.take(self.root, "the server's directory")
            else:
                self.outside.append(real)
            return
        directory = real if found == "directory" else ntpath.dirname(real)
        package = _package(real)
        # If the package is in a project's `node_modules`, take the whole project, because it also
        # contains the packages that this package needs.
        above = package.lower().rpartition("\\node_modules\\")[0]
        if package:
            alone = self.disk.kind(ntpath.join(above, "package.json")) != "file"
            if alone or self.forbids(real[: len(above)]):
                self.take(package, "the server's package")
            else:
                self.take(real[: len(above)], "the server's project")
            return
        marks = {"python": PYTHON_MARKS, "node": NODE_MARKS, "bun": NODE_MARKS}.get(kind, MARKS)
        project = self.project(directory, marks) or self.project(directory, MARKS)
        if project:
            self.take(project, "the server's project")
        elif not self.forbids(directory):
            self.take(directory, "the server's directory")
        elif directory != real:
            self.take(real, "the server")

    def project(self, directory: str, marks: Sequence[str]) -> str:
        while not self.forbids(directory):
            if any(self.disk.kind(ntpath.join(directory, mark)) for mark in marks):
                return directory
            directory = ntpath.dirname(directory)
        return ""


def is_pointer(name: str) -> bool:
    """Return whether a file of this name in site-packages can refer to other directories."""
    return name.endswith(".pth") or (
        name.startswith("__editable___") and name.endswith("_finder.py")
    )


def pointer_targets(name: str, text: str) -> list[str]:
    """Return the directories that a `.pth` file or a setuptools finder names."""
    if name.endswith(".pth"):
        return [line.strip() for line in text.splitlines() if line[1:3] in {":\\", ":/"}]
    from corral.programs import runtimes

    return [path for path in runtimes.parse_editable_finder(text) if path[1:3] == ":\\"]


def _package(real: str) -> str:
    r"""Return the directory of the outermost package that contains a path: `...\node_modules\name`
    or `...\node_modules\@scope\name`. Return "" if the path is not in a package.
    """
    at = real.lower().find("\\node_modules\\")
    if at < 0:
        return ""
    top = at + len("\\node_modules\\")
    parts = real[top:].split("\\")
    return real[:top] + "\\".join(parts[: 2 if parts[0].startswith("@") else 1])
