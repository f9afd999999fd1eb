"""Collect the files that a runtime needs: its prefix, its packages, and the server that it runs.

A `.pth` line or a symlinked package can refer to a directory outside the server. A hostile server
could refer to the user's own directories. So the target gets the directory only if it belongs to a
project in the server's language and `Scope.allows` permits it. Directories in a `.pth` file of the
host's own Python do not need this permission.
"""

from __future__ import annotations

import os
import sys

from corral.paths.posix import is_inside
from corral.programs.needed_files import is_system, list_names, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from corral.programs.arguments import Kind
    from corral.programs.needed_files import Caller, Executable, NeededFiles

PYTHON_MARKS = ("pyproject.toml", "setup.py", "setup.cfg")
NODE_MARKS = ("package.json",)
HOMEBREW = (
    "Cellar", "opt", "bin", "lib", "Frameworks", "share", "etc/openssl@3", "etc/openssl",
    "etc/ca-certificates",
)  # fmt: skip
"""Only these parts of a Homebrew prefix are bound, because other parts contain the user's databases
and keys.
"""
MARKS = (*NODE_MARKS, *PYTHON_MARKS, "manifest.json", "corral.toml", "corral.json")
CODE = (
    ".py", ".pyw", ".pyc", ".pyz", ".pex", ".js", ".mjs", ".cjs", ".jsx",
    ".ts", ".mts", ".cts", ".tsx", ".wasm", ".sh", ".bash", ".zsh", ".ksh", ".rb", ".pl", ".php",
    ".phar", ".lua", ".r", ".dll", ".tcl", ".jar", ".war",
)  # fmt: skip
"""Endings of files that a runtime executes. All other scripts are executable or begin with `#!`."""


def bind_runtime(
    needed: NeededFiles, found: Executable, kind: Kind, flags: str, caller: Caller
) -> list[str]:
    """Bind a runtime's prefix, the directory in which it is installed. For a Python virtual
    environment, bind its base too. Return the directories of Python's packages, or [] for other
    runtimes.
    """
    if kind == "python":
        return bind_python(needed, found, flags, caller)
    if kind:
        prefix = needed.scope.cap(find_prefix(found.real), found.real)
        packages = [f"{prefix}/lib/node_modules"] if kind == "node" else []
        bind_prefix(needed, prefix, [found.real, *packages], f"the prefix of {kind}")
    return []


def find_own_python() -> str:
    """Return the Python that runs corral. In a virtual environment, this is the base Python."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def find_prefix(real: str) -> str:
    # Return the whole Homebrew prefix, because a program in it loads libraries of other packages.
    root, cellar, _ = real.partition("/Cellar/")
    if cellar:
        return root
    directory = os.path.dirname(real)
    return os.path.dirname(directory) if os.path.basename(directory) == "bin" else directory


def bind_prefix(needed: NeededFiles, prefix: str, parts: Iterable[str], why: str) -> None:
    """Bind a prefix. If it also contains unrelated files, as ~/.local does, bind only `parts`. Of a
    Homebrew prefix, bind only the parts in HOMEBREW.
    """
    if is_system(prefix):
        return
    if os.path.isdir(f"{prefix}/Cellar"):
        parts = [f"{prefix}/{name}" for name in HOMEBREW]
    elif not needed.is_shared(prefix):
        needed.bind(prefix, why)
        return
    for part in parts:
        if os.path.exists(part):
            needed.bind_path(part, why)


def bind_python(needed: NeededFiles, found: Executable, flags: str, caller: Caller) -> list[str]:
    settings, venv = find_venv(found.path)
    base = needed.scope.cap(find_prefix(found.real), found.real)
    version = os.path.basename(found.real)
    sites: list[str] = []
    if venv:
        root = needed.follow(venv)
        needed.scope.add_root(root)
        parts = [f"{root}/pyvenv.cfg", *list_libraries(root)]
        bind_prefix(needed, root, parts, "the virtual environment")
        sites += list_site_packages(root)
    bind_prefix(needed, base, [found.real, *list_libraries(base, version)], "the prefix of python")
    base = _bind_base(needed, settings.get("home", ""), venv) or base
    if not venv or settings.get("include-system-site-packages", "").lower() == "true":
        sites += list_site_packages(base)
        if "s" not in flags and "I" not in flags:
            sites += _bind_user_sites(needed, base, version, caller.home)
    return sites


def find_venv(path: str) -> tuple[dict[str, str], str]:
    """Return the settings and the directory of an interpreter's venv. Both are empty if the
    interpreter is not in a venv.

    Like Python's getpath.py, look for pyvenv.cfg beside `path` and in the directory above. The
    caller must not resolve symlinks in `path`, because a venv's interpreter is a symlink to a file
    outside the venv.
    """
    parent = os.path.dirname(path)
    for directory in (parent, os.path.dirname(parent)):
        text = read_text(f"{directory}/pyvenv.cfg")
        if text:
            pairs = (line.partition("=") for line in text.splitlines())
            return {key.strip().lower(): value.strip() for key, _, value in pairs}, directory
    return {}, ""


def list_libraries(prefix: str, version: str = "") -> Iterator[str]:
    """Yield paths such as lib/python3.12 and lib/libpython3.12.so.1.0 that exist in a prefix.
    Without an exact `version`, yield the paths of all versions.
    """
    known = version.removeprefix("python").count(".") > 0
    for directory in (f"{prefix}/lib", f"{prefix}/lib64"):
        for name in () if os.path.islink(directory) else list_names(directory):
            if name.startswith(("python", "pypy", "libpython")) and (
                not known or name == version or name.startswith(f"lib{version}.")
            ):
                yield f"{directory}/{name}"


def _bind_base(needed: NeededFiles, home: str, venv: str) -> str:
    """Bind the Python installation that pyvenv.cfg names as `home`, and return its prefix. Return
    "" if there is no Python installation.

    If the target may not read the prefix, it is recorded as refused, and the error is raised later.
    """
    real = needed.real_path(home) if home.startswith("/") else ""
    if not real:
        return ""
    # A directory counts as a prefix only if it contains Python's own library, because another
    # directory with a `lib` may contain the user's files.
    prefix = find_prefix(f"{real}/python")
    parts = list(list_libraries(prefix))
    if not any(os.path.isfile(f"{library}/os.py") for library in parts):
        return ""
    scope = needed.scope
    known = needed.covers(prefix) or prefix == find_prefix(find_own_python())
    if not (known or scope.allows(prefix)):
        scope.chosen.append(f"{real}/python")
        if not scope.is_managed(prefix):
            scope.refuse(prefix, f"{venv}/pyvenv.cfg")
    needed.follow(home)
    bind_prefix(needed, prefix, parts, "the base of the virtual environment")
    return prefix


def list_site_packages(prefix: str) -> list[str]:
    if prefix == "/usr":  # Debian's pip installs into /usr/local
        return [f"{library}/dist-packages" for library in list_libraries("/usr/local")]
    return [f"{library}/site-packages" for library in list_libraries(prefix)]


def _bind_user_sites(needed: NeededFiles, base: str, version: str, home: str) -> list[str]:
    names = [version] if version.count(".") else [os.path.basename(p) for p in list_libraries(base)]
    sites = [f"{home}/.local/lib/{name}/site-packages" for name in names]
    sites = [site for site in sites if home and os.path.isdir(site)]
    for site in sites:
        needed.bind_path(site, "packages that the user installed")
    return sites


def bind_editables(needed: NeededFiles, site: str, home: str) -> None:
    """Bind the projects of the editable installs in `site`, a directory of packages. Each project
    is named by a `.pth` file or by a setuptools finder (`__editable___..._finder.py`).
    """
    for name in list_names(site):
        paths: list[str] = []
        if name.endswith(".pth"):
            lines = read_text(f"{site}/{name}").splitlines()
            paths = [line.rstrip() for line in lines if line.startswith("/")]
        elif name.startswith("__editable___") and name.endswith("_finder.py"):
            paths = parse_editable_finder(read_text(f"{site}/{name}"))
        for path in paths:
            _bind_editable(needed, path, f"{site}/{name}", home)


def parse_editable_finder(source: str) -> list[str]:
    """Return the paths in the dictionary MAPPING of a setuptools finder. The finder is parsed, not
    executed.
    """
    import ast

    try:
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign):
                target, value = node.targets[0], node.value
            elif isinstance(node, ast.AnnAssign) and node.value:
                target, value = node.target, node.value
            else:
                continue
            if isinstance(target, ast.Name) and target.id == "MAPPING":
                mapping: object = ast.literal_eval(value)
                paths = mapping.values() if isinstance(mapping, dict) else ()
                return [path for path in paths if isinstance(path, str)]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        pass
    return []


def _bind_editable(needed: NeededFiles, path: str, named_by: str, home: str) -> None:
    real = needed.real_path(path)
    if not real or needed.covers(real):
        return
    directory = real if os.path.isdir(real) else os.path.dirname(real)
    if needed.is_shared(directory) or not find_project(needed, directory, PYTHON_MARKS):
        return
    scope = needed.scope
    if not scope.allows(real):
        if not _is_hosts_own(needed, named_by, home):
            scope.refuse(real, named_by)
            return
        needed.notes.append(f"{real} is readable, because {named_by} names it")
    needed.follow(path)
    if not scope.is_granted(real):
        needed.bind(real, f"an editable install, {os.path.basename(named_by)}")


def _is_hosts_own(needed: NeededFiles, file: str, home: str) -> bool:
    """Return whether a `.pth` file belongs to a Python installation of the host, and not to a
    server's venv.

    corral's own environment counts as the host's, because corral runs the code in it outside of any
    sandbox anyway.
    """
    scope = needed.scope
    if scope.is_writable(file):
        return False
    if is_inside(file, f"{home}/.local/lib") or is_inside(file, sys.prefix):
        return True
    prefix = file.partition("/lib/python")[0]
    chosen = any(is_inside(path, prefix) for path in scope.chosen)
    installed = scope.is_on_path(f"{prefix}/bin/python3") or (scope.is_managed(file) and not chosen)
    return installed and not os.path.isfile(f"{prefix}/pyvenv.cfg")


def find_project(needed: NeededFiles, directory: str, marks: Sequence[str]) -> str:
    """Return `directory` or the nearest directory above it that contains one of `marks`, such as
    package.json. Return '' if the search reaches a directory that must not be bound as a whole.
    """
    while not needed.is_shared(directory):
        if any(os.path.lexists(f"{directory}/{mark}") for mark in marks):
            return directory
        directory = os.path.dirname(directory)
    return ""


def bind_python_module(
    needed: NeededFiles, module: str, flags: str, caller: Caller, sites: Sequence[str]
) -> None:
    """Bind the caller's directory if `python -m name` would load the module from that directory.

    Do not bind it if a module of that name is installed. Clients start servers in the project that
    is open, and this project may have a directory of the same name by chance.
    """
    first = module.partition(".")[0]
    if not first or "/" in first or "I" in flags or "P" in flags:
        return
    local = f"{caller.cwd.rstrip('/')}/{first}"
    if not _is_module(local):
        return
    if installed := next(filter(_is_module, (f"{site}/{first}" for site in sites)), ""):
        needed.notes.append(f"{local} is not readable, because {installed} has the same name")
    else:
        bind_server(needed, caller.cwd, "python")


def _is_module(path: str) -> bool:
    return os.path.isdir(path) or os.path.isfile(f"{path}.py")


def bind_server(needed: NeededFiles, path: str, kind: Kind) -> None:
    """Bind the files of the server that `path` belongs to: its project, or else its directory, or
    else only the file itself.
    """
    try:
        real = needed.follow(path)
    except (OSError, ValueError):
        return  # the runtime itself will report the missing script
    directory = real if os.path.isdir(real) else os.path.dirname(real)
    if needed.scope.named and not needed.scope.allows(real):
        needed.scope.refuse(needed.scope.enclose(real), needed.scope.named)
    if not needed.covers(real) and not needed.scope.is_granted(real) and not _is_code(real):
        needed.scope.refuse(real, path)
        return
    grant = needed.scope.find_grant(real)
    if not grant:
        needed.scope.add_root(directory)
    if not grant and not needed.covers(real):
        _bind_project(needed, real, directory, kind)
    if kind in {"node", "deno", "bun"}:
        from corral.programs.node_packages import bind_packages

        bind_packages(needed, directory, grant or needed.scope.find_root(directory))


def _is_code(path: str) -> bool:
    """Return whether a file may be a program.

    If a command names a file as its script, the file may become readable only if it is a program.
    Otherwise a command that came with a project could name one of the user's keys as its script. An
    environment variable could then make the runtime execute other code, which reads the key.
    """
    if path.lower().endswith(CODE) or os.path.isdir(path) or os.access(path, os.X_OK):
        return True
    return read_text(path).startswith("#!")


def _bind_project(needed: NeededFiles, real: str, directory: str, kind: Kind) -> None:
    root, modules, _ = real.partition("/node_modules/")
    if modules:
        needed.bind(f"{root}/node_modules", "the packages beside the server")
        return
    marks = {"python": PYTHON_MARKS, "node": NODE_MARKS, "bun": NODE_MARKS}.get(kind, MARKS)
    project = find_project(needed, directory, marks) or find_project(needed, directory, MARKS)
    if project:
        needed.bind(needed.scope.cap(project, directory), "the server's project")
    elif not kind and os.path.basename(directory) == "bin":
        # A native program needs its prefix only if the prefix contains libraries.
        prefix = needed.scope.cap(os.path.dirname(directory), directory)
        beside = (f"{prefix}/{name}" for name in ("lib", "libexec", "share"))
        if not needed.is_shared(prefix) and any(map(os.path.isdir, beside)):
            needed.bind(prefix, "the server's prefix")
        else:
            needed.bind(real, "the server")
    elif not needed.is_shared(directory):
        needed.bind(directory, "the server's directory")
    elif directory != real:
        needed.bind(real, "the server")
