"""Install the dependencies of a `uv` bundle. Such a bundle names its dependencies but does not
contain them.

The dependencies are installed like those of a package, into a virtual environment beside the
bundle's files. corral ignores the bundle's own `uv.lock`, and makes its own lock file with hashes.
"""

import os
from collections.abc import Mapping

from corral.errors import SandboxError
from corral.formats.bounded_toml import parse_toml
from corral.programs.needed_files import read_text
from corral.safe_text import shown
from corral.servers.bundles.manifest import Bundle
from corral.servers.packages import pypi
from corral.servers.packages.pypi_settings import INTERPRETER, LINKS, read_registry
from corral.servers.packages.python_environment import OWN_NAMES, make_environment
from corral.servers.packages.sandboxed_install import write_text
from corral.servers.packages.sources import Registry
from corral.servers.reference import LETTERS
from corral.servers.store import store
from corral.servers.store.store import Entry

PROJECT = "pyproject.toml"
MARKS = frozenset(" ._-*+!<>=~,;()[]'\"")


def install(bundle: Bundle, tree: str, values: Mapping[str, object]) -> Entry:
    entry = os.path.normpath(bundle.entry)
    if entry.startswith(("..", "/")) or not os.path.isfile(os.path.join(tree, entry)):
        raise SandboxError(f"{bundle.name} does not contain its entry point {shown(bundle.entry)}")
    for name in (*OWN_NAMES, pypi.REQUIREMENTS, pypi.LOCK):
        if os.path.lexists(os.path.join(tree, name)):
            text = f"{bundle.name} contains {name}, a name that corral uses for its dependencies"
            raise SandboxError(text)
    wanted = _read_dependencies(os.path.join(tree, PROJECT))
    registry = read_registry(os.environ) if wanted else Registry()
    environment = make_environment(tree, registry, bundle.name)
    if wanted:
        write_text(tree, pypi.REQUIREMENTS, "\n".join([*wanted, ""]))
        pypi.install_requirements(environment, scripts=False)
        pypi.check_lock(tree)
    command = [f"{{tree}}/{INTERPRETER}", f"{{tree}}/{entry}"]
    return store.commit(tree, {**values, "command": command}, allowed=LINKS)


def _read_dependencies(path: str) -> list[str]:
    try:
        project = parse_toml(read_text(path)).get("project", {})
    except ValueError:
        raise SandboxError(f"the bundle's {PROJECT} is not valid TOML") from None
    found = project.get("dependencies", []) if isinstance(project, dict) else []
    listed = [item for item in found if isinstance(item, str)] if isinstance(found, list) else []
    for item in listed:
        if not is_requirement(item):
            raise SandboxError(
                f"the bundle depends on {shown(item, 200)}, which does not name a package in an"
                " index"
            )
    return listed


def is_requirement(text: str) -> bool:
    """Return whether a string is only a package's name, with or without extras, versions and
    environment markers (PEP 508).

    Return False for `name @ url`, paths, options, variables such as `${NAME}` and line breaks,
    because they could make the installer read other files.
    """
    words = text.split()
    plain = (LETTERS | MARKS).issuperset(text) and text[:1] in LETTERS
    return plain and not any(word.startswith("-") for word in words)
