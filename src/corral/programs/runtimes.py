"""The files that a runtime needs: its prefix, its packages, and the server that it is told to run.

A server's own files can name further directories (a `.pth` line, a linked package). They arrive
with the server, so they are believed only where they lead to a project of that language, never to a
plain directory, and one that lies elsewhere is put into the notes.
"""

from __future__ import annotations

import os

from corral.paths.posix import is_inside
from corral.programs.needed_files import is_system, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from corral.programs.arguments import Kind
    from corral.programs.needed_files import Caller, Executable, Reach

PYTHON_MARKS = ("pyproject.toml", "setup.py", "setup.cfg")
NODE_MARKS = ("package.json", "node_modules")
HOMEBREW = (
    "Cellar", "opt", "bin", "lib", "Frameworks", "share", "etc/openssl@3", "etc/openssl",
    "etc/ca-certificates",
)  # fmt: skip
"""Of a prefix of Homebrew's. In its `var` and `etc` are the user's databases and their keys."""
MARKS = (*NODE_MARKS, *PYTHON_MARKS, "manifest.json", "corral.toml", "corral.json")


def bind_runtime(
    reach: Reach, found: Executable, kind: Kind, flags: str, caller: Caller
) -> list[str]:
    """The prefix of the runtime; of a Python also its base and what its packages point to.

    Returns where a Python's packages are.
    """
    if kind == "python":
        return bind_python(reach, found, flags, caller)
    if kind:
        prefix = prefix_of(found.real)
        packages = [f"{prefix}/lib/node_modules"] if kind == "node" else []
        bind_prefix(reach, prefix, [found.real, *packages], f"the prefix of {kind}")
    return []


def prefix_of(real: str) -> str:
    # Homebrew's programs load the libraries of their neighbours.
    root, cellar, _ = real.partition("/Cellar/")
    if cellar:
        return root
    directory = os.path.dirname(real)
    return os.path.dirname(directory) if os.path.basename(directory) == "bin" else directory


def bind_prefix(reach: Reach, prefix: str, parts: Iterable[str], why: str) -> None:
    """A prefix that holds more than the runtime (~/.local) is not bound, only these parts of it."""
    if is_system(prefix):
        return
    if os.path.isdir(f"{prefix}/Cellar"):
        parts = [f"{prefix}/{name}" for name in HOMEBREW]
    elif not reach.forbids(prefix):
        reach.bind(prefix, why)
        return
    for part in parts:
        if os.path.exists(part):
            reach.bind_path(part, why)


def bind_python(reach: Reach, found: Executable, flags: str, caller: Caller) -> list[str]:
    settings, venv = venv_of(found.path)
    base = prefix_of(found.real)
    version = os.path.basename(found.real)
    sites: list[str] = []
    if venv:
        root = reach.follow(venv)
        parts = [f"{root}/pyvenv.cfg", *libraries(root)]
        bind_prefix(reach, root, parts, "the virtual environment")
        sites += site_packages(root)
    bind_prefix(reach, base, [found.real, *libraries(base, version)], "the prefix of python")
    base = _bind_home(reach, settings.get("home", "")) or base
    if not venv or settings.get("include-system-site-packages", "").lower() == "true":
        sites += site_packages(base)
        if "s" not in flags and "I" not in flags:
            sites += _bind_user_sites(reach, base, version, caller.home)
    for site in sites:
        bind_editables(reach, site, os.path.dirname(venv))
    return sites


def venv_of(path: str) -> tuple[dict[str, str], str]:
    """Settings and directory of the venv that this unresolved path is in, as getpath.py looks."""
    directory = os.path.dirname(path)
    for place in (directory, os.path.dirname(directory)):
        text = read_text(f"{place}/pyvenv.cfg")
        if text:
            pairs = (line.partition("=") for line in text.splitlines())
            return {key.strip().lower(): value.strip() for key, _, value in pairs}, place
    return {}, ""


def libraries(prefix: str, version: str = "") -> Iterator[str]:
    """lib/python3.12 and, where the interpreter is linked to it, lib/libpython3.12.so.1.0."""
    known = version.removeprefix("python").count(".") > 0
    for directory in (f"{prefix}/lib", f"{prefix}/lib64"):
        try:
            names = [] if os.path.islink(directory) else sorted(os.listdir(directory))
        except OSError:
            continue
        for name in names:
            if name.startswith(("python", "pypy", "libpython")) and (
                not known or name == version or name.startswith(f"lib{version}.")
            ):
                yield f"{directory}/{name}"


def _bind_home(reach: Reach, home: str) -> str:
    """The base that pyvenv.cfg names. The file came with the venv: only a Python is believed."""
    if not home.startswith("/"):
        return ""
    try:
        real = reach.trace(home)[0]
    except (OSError, ValueError):
        return ""
    base = os.path.dirname(real)
    parts = list(libraries(base))
    if not any(os.path.isfile(f"{library}/os.py") for library in parts):
        return ""
    reach.follow(home)
    bind_prefix(reach, prefix_of(f"{real}/python"), parts, "the base of the virtual environment")
    return base


def site_packages(prefix: str) -> list[str]:
    if prefix == "/usr":  # Debian keeps what pip installs apart, and has no links in its own
        return [f"{library}/dist-packages" for library in libraries("/usr/local")]
    return [f"{library}/site-packages" for library in libraries(prefix)]


def _bind_user_sites(reach: Reach, base: str, version: str, home: str) -> list[str]:
    names = [version] if version.count(".") else [os.path.basename(p) for p in libraries(base)]
    sites = [f"{home}/.local/lib/{name}/site-packages" for name in names]
    sites = [site for site in sites if home and os.path.isdir(site)]
    for site in sites:
        reach.bind_path(site, "packages that the user installed")
    return sites


def bind_editables(reach: Reach, site: str, beside: str) -> None:
    """Packages installed as links to a project elsewhere: `.pth` lines and setuptools' finders."""
    try:
        names = sorted(os.listdir(site))
    except OSError:
        return
    for name in names:
        paths: list[str] = []
        if name.endswith(".pth"):
            lines = read_text(f"{site}/{name}").splitlines()
            paths = [line.rstrip() for line in lines if line.startswith("/")]
        elif name.startswith("__editable___") and name.endswith("_finder.py"):
            paths = mapped(read_text(f"{site}/{name}"))
        for path in paths:
            _bind_editable(reach, path, f"{site}/{name}", beside)


def mapped(source: str) -> list[str]:
    """The values of the MAPPING literal in a finder that setuptools wrote; it is never executed."""
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


def _bind_editable(reach: Reach, path: str, named_by: str, beside: str) -> None:
    try:
        real = reach.trace(path)[0]
    except (OSError, ValueError):
        return
    if reach.covers(real):
        return
    directory = real if os.path.isdir(real) else os.path.dirname(real)
    if reach.forbids(directory) or not project_of(reach, directory, PYTHON_MARKS):
        return
    reach.bind_path(path, f"an editable install, {os.path.basename(named_by)}")
    if not beside or not is_inside(real, beside):
        reach.notes.append(f"{real} is readable, because {named_by} names it")


def project_of(reach: Reach, directory: str, marks: Sequence[str]) -> str:
    """The nearest directory upward with one of these, below everything that is never bound."""
    while not reach.forbids(directory):
        if any(os.path.lexists(f"{directory}/{mark}") for mark in marks):
            return directory
        directory = os.path.dirname(directory)
    return ""


def bind_module(
    reach: Reach, module: str, flags: str, caller: Caller, sites: Sequence[str]
) -> None:
    """`python -m name` looks into the caller's directory first: a module there is the server.

    Not if one of that name is installed: clients start servers in whatever project is open, and it
    may have a folder that is called so.
    """
    first = module.partition(".")[0]
    if not first or "/" in first or "I" in flags or "P" in flags:
        return
    place = f"{caller.cwd.rstrip('/')}/{first}"
    if not _is_module(place):
        return
    if installed := next(filter(_is_module, (f"{site}/{first}" for site in sites)), ""):
        reach.notes.append(f"{place} is not readable, because {installed} has the same name")
    else:
        bind_server(reach, caller.cwd, "python")


def _is_module(place: str) -> bool:
    return os.path.isdir(place) or os.path.isfile(f"{place}.py")


def bind_server(reach: Reach, path: str, kind: Kind) -> None:
    """The server's own files: its project, else its directory, else the one file."""
    try:
        real = reach.follow(path)
    except (OSError, ValueError):
        return  # the runtime says in its own words that there is no such script
    directory = real if os.path.isdir(real) else os.path.dirname(real)
    if not reach.covers(real):
        _bind_own(reach, real, directory, kind)
    if kind in {"node", "deno", "bun"}:
        bind_modules(reach, directory, set())


def _bind_own(reach: Reach, real: str, directory: str, kind: Kind) -> None:
    root, modules, _ = real.partition("/node_modules/")
    if modules:
        reach.bind(f"{root}/node_modules", "the packages that the server is one of")
        return
    marks = {"python": PYTHON_MARKS, "node": NODE_MARKS, "bun": NODE_MARKS}.get(kind, MARKS)
    project = project_of(reach, directory, marks) or project_of(reach, directory, MARKS)
    if project:
        reach.bind(project, "the server's project")
    elif not kind and os.path.basename(directory) == "bin":
        _bind_installed(reach, real, os.path.dirname(directory))
    elif not reach.forbids(directory):
        reach.bind(directory, "the server's directory")
    elif directory != real:
        reach.bind(real, "the server")


def _bind_installed(reach: Reach, real: str, prefix: str) -> None:
    """A native program in some bin: alone, unless its prefix is its own and has a lib beside it."""
    beside = (f"{prefix}/{name}" for name in ("lib", "libexec", "share"))
    if not reach.forbids(prefix) and any(map(os.path.isdir, beside)):
        reach.bind(prefix, "the server's prefix")
    else:
        reach.bind(real, "the server")


def bind_modules(reach: Reach, directory: str, passed: set[str]) -> None:
    """Every node_modules that node looks into, from the script up to HOME, with linked packages."""
    while directory not in passed:
        passed.add(directory)
        modules = f"{directory}/node_modules"
        if os.path.isdir(modules) and not is_system(modules):
            real = os.path.realpath(modules)
            if real == modules or os.path.basename(real) == "node_modules":
                reach.bind_path(modules, "packages that the server can load")
                bind_linked(reach, real, passed)
        if directory in reach.homes or reach.forbids(directory):
            return
        directory = os.path.dirname(directory)


def bind_linked(reach: Reach, modules: str, passed: set[str]) -> None:
    """Packages that a workspace or `npm link` put there as links to a directory elsewhere."""
    for entry in _package_links(modules):
        try:
            real = reach.trace(entry)[0]
        except (OSError, ValueError):
            continue
        root, inside, _ = real.partition("/node_modules/")
        wanted = f"{root}/node_modules" if inside else real
        if reach.covers(real) or not os.path.isfile(f"{real}/package.json"):
            continue
        if reach.forbids(wanted):
            continue
        reach.follow(entry)
        reach.bind(wanted, "a linked package")
        if not is_inside(wanted, os.path.dirname(modules)):
            reach.notes.append(f"{wanted} is readable, because {entry} links to it")
        bind_modules(reach, real, passed)


def _package_links(modules: str) -> Iterator[str]:
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
