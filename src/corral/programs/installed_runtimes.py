"""Find the versions of Python and Node.js that the system and version managers have installed.

Versions are read from the names of files and directories. For a Node.js on PATH and for a runtime
that is given by its path, this is not possible, so the file has to be executed. It may be hostile,
because its path may come from a client's configuration, or a target may have replaced it. So the
caller passes a function `ask`, which executes it in a sandbox.
"""

import glob
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from corral.directories import home_directory
from corral.errors import EXIT_NOT_FOUND, CommandError
from corral.programs.needed_files import Caller, is_program, list_names
from corral.programs.runtimes import find_own_python
from corral.programs.scope import managed_directories
from corral.record import record
from corral.safe_text import shown

Kind = Literal["python", "node"]
Version = tuple[int, ...]
Ask = Callable[[Sequence[str]], str]
"""Executes a command in a sandbox, and returns its output, or "" if the command fails."""

# Paths below a version manager's directory. The star stands for the directory whose name contains
# the version.
LAYOUTS: dict[Kind, tuple[str, ...]] = {
    "python": ("*/bin/python3", "python/*/bin/python3"),
    "node": ("*/bin/node", "node/*/bin/node", "nodejs/*/bin/node", "*/installation/bin/node"),
}
HOMEBREW = ("/opt/homebrew/opt", "/usr/local/opt", "/home/linuxbrew/.linuxbrew/opt")
NUMBER = r"\d{1,9}"
"""A part of a version. The number of digits is limited, because `int` refuses thousands of digits
with a ValueError.
"""
MIN_PYTHON = (3, 8)
"""Older versions lack `importlib.metadata`, which most packages import."""
ASK = {
    "python": ("-I", "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"),
    "node": ("--version",),
}


@record
class Runtime:
    path: str
    version: Version


def find_runtime(kind: Kind, wanted: str, ask: Ask) -> Runtime:
    """Return the runtime at a path, or the newest installed runtime of a version such as 3.12.
    Raise CommandError if there is no such runtime.
    """
    if os.sep in wanted:
        path = os.path.abspath(os.path.expanduser(wanted))
        version = _ask_version(kind, path, ask) if is_program(path) else ()
        if not version:
            raise CommandError(f"{shown(wanted)} is not a {kind}", exit_code=EXIT_NOT_FOUND)
        return Runtime(path=path, version=version)
    asked = parse_version(wanted)
    found = list_runtimes(kind, ask)
    fitting = [one for one in found if asked and one.version[: len(asked)] == asked]
    if not fitting:
        known = sorted({one.version[:2] if kind == "python" else one.version for one in found})
        here = ", ".join(map(format_version, known)) or "none"
        raise CommandError(
            f"no {kind} {shown(wanted)} is installed",
            exit_code=EXIT_NOT_FOUND,
            hint=f"installed: {here}; --{kind} also accepts a path",
        )
    return max(fitting, key=lambda one: one.version)


def list_runtimes(kind: Kind, ask: Ask = lambda _: "") -> list[Runtime]:
    """Return the installed runtimes, each real file only once. corral's own Python and the runtimes
    on PATH come first.
    """
    found: dict[str, Runtime] = {}
    for path, version in _candidates(kind, os.environ, ask):
        if version and is_program(path):
            found.setdefault(os.path.realpath(path), Runtime(path=path, version=version))
    return [one for one in found.values() if kind != "python" or one.version >= MIN_PYTHON]


def find_fitting_python(requirement: str) -> str:
    """Return the newest installed version (such as `3.12`) that meets a requirement (such as
    `>=3.12,<3.14`), or '' if there is none.
    """
    versions = {one.version[:2] for one in list_runtimes("python")}
    fitting = [one for one in versions if _fits(one, requirement)]
    return format_version(max(fitting)) if fitting else ""


def find_fitting_node(requirement: str) -> str:
    """Return the newest installed Node.js that a package's `engines` field allows, or ''."""
    ranges = [_npm_range_to_requirement(one) for one in requirement.split("||")]
    versions = {one.version for one in list_runtimes("node")}
    fitting = [one for one in versions if any(_fits(one, each) for each in ranges)]
    return format_version(max(fitting)) if fitting else ""


def _npm_range_to_requirement(text: str) -> str:
    """Convert npm's syntax to Python's: `>= 18 <21.x` to `>=18,<21`, and `^20.19` to `~=20.19`."""
    joined = re.sub(r"([<>=^~])\s+", r"\1", text.strip()).replace("^", "~=")
    return ",".join(re.sub(r"(?:\.[xX*])+$", "", word) for word in joined.split())


def format_version(version: Version) -> str:
    return ".".join(map(str, version))


def parse_version(text: str) -> Version:
    """Return the version in a text such as `3.12`, `v22.11.0` or `python3.12`, or () if the text is
    not a version.
    """
    match = re.fullmatch(rf"(?:v|node|c?python)?-?({NUMBER}(?:\.{NUMBER}){{0,2}})", text)
    return tuple(map(int, match[1].split("."))) if match else ()


def _fits(version: Version, requirement: str) -> bool:
    """Return whether a version such as 3.12 has a patch release that may meet a requirement."""
    for part in requirement.replace(" ", "").strip(",").split(","):
        match = re.fullmatch(rf"(>=|<=|==|!=|~=|>|<)?({NUMBER}(?:\.{NUMBER})*)(?:\.\*)?", part)
        if match is None:
            return False
        bound = tuple(map(int, match[2].split(".")))
        ours, limit = version[: len(bound[:2])], bound[:2]
        # A bound with a patch release, such as `>3.12.4`, still allows another release of 3.12.
        has_patch = len(bound) > 2
        allowed = {
            ">=": ours >= limit,
            "~=": ours >= limit and version[0] == bound[0],
            ">": ours > limit or (has_patch and ours == limit),
            "<": ours < limit or (has_patch and ours == limit),
            "<=": ours <= limit,
            "!=": has_patch or ours != limit,
        }.get(match[1] or "==", ours == limit)
        if not allowed:
            return False
    return True


def _candidates(
    kind: Kind, environment: Mapping[str, str], ask: Ask
) -> Iterator[tuple[str, Version]]:
    home = home_directory(environment)
    if kind == "python":
        yield find_own_python(), sys.version_info[:3]
    yield from _on_path(kind, Caller(environment=environment, cwd="/", home=home), ask)
    for root in HOMEBREW:
        for path in glob.glob(f"{root}/{kind}@*/bin/{kind}*"):
            yield path, parse_version(path[len(root) + 1 :].partition("/")[0].partition("@")[2])
    for root in managed_directories(environment, {home}):
        for layout in LAYOUTS[kind]:
            before, _, after = layout.partition("*")
            for path in sorted(glob.glob(f"{glob.escape(root)}/{layout}")):
                name = path[len(root) + 1 + len(before) : len(path) - len(after)]
                # uv's names look like cpython-3.12.7-linux-x86_64-gnu.
                version = re.fullmatch(r"(?:cpython-|v)?(\d+(?:\.\d+)+)(?:-.*)?", name)
                yield path, parse_version(version[1]) if version else ()


def _on_path(kind: Kind, caller: Caller, ask: Ask) -> Iterator[tuple[str, Version]]:
    if kind == "node":
        # Skip a script, because it is a version manager's shim, and the version that a shim starts
        # depends on the working directory.
        path = caller.lookup("node")
        yield path, () if not path or _is_script(path) else _ask_version(kind, path, ask)
        return
    for directory in caller.search_path():
        for name in list_names(directory):
            path = f"{directory}/{name}"
            if re.fullmatch(r"python3\.\d+", name) and is_program(path) and not _is_script(path):
                yield path, parse_version(name)


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except PermissionError:
        return False  # not a script, because only a readable file works as a script


def _ask_version(kind: Kind, path: str, ask: Ask) -> Version:
    # Execute a Python under its real path, which for a virtual environment is the path of its base
    # Python. Execute other programs as written, because a shim depends on its own name.
    program = os.path.realpath(path) if kind == "python" else path
    return parse_version(ask([program, *ASK[kind]]).strip())
