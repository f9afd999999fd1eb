"""Find out whether a workspace file of pnpm, npm or uv lists a package."""

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice

from corral.formats.bounded_toml import parse_toml
from corral.programs.needed_files import read_json, read_text

MAX_PATTERNS = 1000


def lists_package(directory: str, package: str) -> bool:
    """Return whether the workspace files in `directory` list the package at the path `package`.

    The files contain patterns of paths. The last pattern that matches decides: the package is
    listed, unless this pattern begins with `!`.
    """
    listed = False
    below = os.path.relpath(package, directory)
    for pattern in islice(_patterns(directory), MAX_PATTERNS):
        wanted = pattern.removeprefix("!").removeprefix("./").rstrip("/")
        if _matches(below.split("/"), wanted.split("/")):
            listed = not pattern.startswith("!")
    return listed


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Return whether a path matches a pattern. This function does not backtrack, because a hostile
    pattern could make backtracking very slow.
    """
    reached = {0}
    for word in pattern:
        if word == "**":
            reached = set(range(min(reached, default=len(parts) + 1), len(parts) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(parts) and fnmatchcase(parts[at], word)}
    return len(parts) in reached


def _patterns(directory: str) -> Iterator[str]:
    yield from _pnpm_patterns(read_text(f"{directory}/pnpm-workspace.yaml"))
    listed = read_json(f"{directory}/package.json").get("workspaces")
    yield from _strings(_get(listed, "packages") if isinstance(listed, dict) else listed)
    try:
        project: object = parse_toml(read_text(f"{directory}/pyproject.toml"))
    except ValueError:
        project = {}
    workspace = _get(_get(_get(project, "tool"), "uv"), "workspace")
    yield from _strings(_get(workspace, "members"))
    yield from (f"!{pattern}" for pattern in _strings(_get(workspace, "exclude")))


def _get(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, dict) else None


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, str))


def _pnpm_patterns(text: str) -> Iterator[str]:
    """Yield the items of `packages:` in a pnpm-workspace.yaml. Each item is on a line that begins
    with a dash, or all items are in brackets on the line of `packages:`.
    """
    inside = False
    for line in text.splitlines():
        word = line.partition(" #")[0].strip()
        if not line.startswith((" ", "-", "#")) and word:
            inside = word.startswith("packages:")
            word = word.removeprefix("packages:").strip()
            if inside and word.startswith("["):
                yield from (item.strip(" '\"") for item in word.strip("[]").split(","))
        elif inside and word.startswith("-"):
            yield word[1:].strip(" '\"")
