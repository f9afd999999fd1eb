"""A bundle of the type `uv`: its dependencies are named, not brought along.

They are installed as for a package, into a virtual environment beside the bundle's files. Its own
`uv.lock` is not read; what was chosen is listed with hashes in the tree.
"""

from __future__ import annotations

import os
import string

from corral.errors import SandboxError
from corral.safe_text import shown
from corral.servers.packages import pypi
from corral.servers.packages.npm import put
from corral.servers.packages.pypi_settings import indexes
from corral.servers.packages.sandboxed_install import LINKS
from corral.servers.store import store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.servers.bundles.manifest import Bundle
    from corral.servers.store.store import Entry

PROJECT = "pyproject.toml"
LETTERS = frozenset(string.ascii_letters + string.digits)
MARKS = frozenset(" ._-*+!<>=~,;()[]'\"")


def install(bundle: Bundle, tree: str, values: Mapping[str, object]) -> Entry:
    entry = os.path.normpath(bundle.entry)
    if entry.startswith(("..", "/")) or not os.path.isfile(os.path.join(tree, entry)):
        raise SandboxError(f"{bundle.name} has no {shown(bundle.entry)} in it")
    for name in ("bin", "lib", "pyvenv.cfg", pypi.WANTED, pypi.LOCK):
        if os.path.lexists(os.path.join(tree, name)):
            raise SandboxError(f"{bundle.name} brings {name} along, where its packages belong")
    wanted = dependencies(os.path.join(tree, PROJECT))
    base = pypi.interpreter()
    site = pypi.make_environment(tree, base)
    if wanted:
        put(tree, pypi.WANTED, "\n".join([*wanted, ""]))
        place = pypi.Place(
            staging=tree, site=site, base=base, registry=indexes(os.environ), label=bundle.name
        )
        pypi.fill(place, scripts=False)
        pypi.check_lock(tree)
    command = [f"{{tree}}/{pypi.PYTHON}", f"{{tree}}/{entry}"]
    return store.adopt(tree, {**values, "command": command}, allowed=LINKS)


def dependencies(path: str) -> list[str]:
    import tomllib

    from corral.programs.needed_files import read_text

    try:
        project = tomllib.loads(read_text(path)).get("project", {})
    except (ValueError, RecursionError):
        raise SandboxError(f"the bundle's {PROJECT} is not valid TOML") from None
    found = project.get("dependencies", []) if isinstance(project, dict) else []
    listed = [item for item in found if isinstance(item, str)] if isinstance(found, list) else []
    for item in listed:
        if not is_requirement(item):
            raise SandboxError(f"the bundle needs {shown(item, 200)}, which is not from an index")
    return listed


def is_requirement(text: str) -> bool:
    """A name with marks (PEP 508), of an index.

    `name @ url`, paths, options, variables and whatever an installer takes for the end of a line
    lead elsewhere.
    """
    words = text.split()
    plain = (LETTERS | MARKS).issuperset(text) and text[:1] in LETTERS
    return plain and not any(word.startswith("-") for word in words)
