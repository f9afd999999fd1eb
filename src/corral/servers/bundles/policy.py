"""What a bundle asks for, and what the user's values for it grant, each as a source of policy."""

from __future__ import annotations

import os

from corral.errors import SandboxError
from corral.policy.manifest import Manifest, from_data
from corral.policy.model import Source
from corral.policy.variables import is_loader_variable
from corral.record import replace
from corral.safe_text import printable, shown
from corral.servers.bundles import user_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.servers.bundles.manifest import Bundle
    from corral.servers.bundles.user_values import Values

# Variables that only make a runtime look for code in more places: fine where these are its own.
OWN_PATHS = frozenset({"PYTHONPATH", "NODE_PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"})


def variables(
    bundle: Bundle, values: Values, known: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The target's variables, and the names of those that carry a secret."""
    environment = {
        name: user_values.substitute(text, known, values)
        for name, text in bundle.environment.items()
    }
    return environment, secret_names(bundle, values)


def secret_names(bundle: Bundle, values: Values) -> list[str]:
    """Variables that carry a sensitive value of the user's."""
    found: list[str] = []
    for name, text in bundle.environment.items():
        used = [
            bundle.settings[key] for key in user_values.mentioned(text) if key in bundle.settings
        ]
        if any(one.sensitive and values.texts[one.key] for one in used):
            if is_loader_variable(name):
                raise SandboxError(f"{bundle.name} puts a secret into {name}, which it may not set")
            found.append(name)
    return found


def warnings(bundle: Bundle) -> list[str]:
    keys = [key for word in bundle.arguments for key in user_values.mentioned(word)]
    return [
        f"{bundle.name} takes {shown(key)} as an argument, which every list of processes shows"
        for key in keys
        if key in bundle.settings and bundle.settings[key].sensitive
    ]


def asked_for(bundle: Bundle, values: Values, known: Mapping[str, str], *, origin: str) -> Manifest:
    """The bundle's own words: its corral table, its variables, defaults that name files."""
    tree = known["__dirname"]
    environment, secret = variables(bundle, values, known)
    start = Manifest(origin=origin)
    if bundle.request is not None:
        start = replace(from_data({"version": 1, **bundle.request}, origin), command=None)
        start = replace(
            start,
            read=inside(start.read, tree),
            write=inside(start.write, tree),
            unix_sockets=inside(start.unix_sockets, tree),
        )
    paths = [
        user_values.substitute(text, known, values)
        for key, setting in bundle.settings.items()
        if setting.shape in {"directory", "file"} and key not in values.said
        for text in values.texts[key]
    ]
    wanted = [text for text in paths if os.path.exists(text)]
    said = [
        (name, value)
        for name, value in environment.items()
        if name not in secret and not is_own(name, value, tree)
    ]
    return replace(
        start,
        read=(*(start.read or ()), *wanted) if wanted else start.read,
        set_values=(*(start.set_values or ()), *said) if said else start.set_values,
    )


def inside(paths: tuple[str, ...] | None, tree: str) -> tuple[str, ...] | None:
    """Relative paths start in the bundle; `~` and absolute ones are the user's."""
    if paths is None:
        return None
    return tuple(
        path if path.startswith(("~", "/")) else os.path.join(tree, path) for path in paths
    )


def is_own(name: str, value: str, tree: str) -> bool:
    parts = value.split(os.pathsep)
    return name in OWN_PATHS and all(
        part == tree or part.startswith(tree + os.sep) for part in map(os.path.normpath, parts)
    )


def granted(bundle: Bundle, values: Values, known: Mapping[str, str]) -> Source:
    """What the user's own values allow, and search paths that lead to the bundle's own code."""
    tree = known["__dirname"]
    environment, secret = variables(bundle, values, known)
    paths = [
        text
        for key, setting in bundle.settings.items()
        if setting.shape in {"directory", "file"} and key in values.said
        for text in values.texts[key]
    ]
    own = [(name, value) for name, value in environment.items() if is_own(name, value, tree)]
    manifest = Manifest(
        origin=f"the values for {printable(bundle.name)}",
        read=tuple(paths) or None,
        set_values=tuple(own) or None,
        secret_names=tuple(secret) or None,
    )
    return Source(manifest=manifest, trust="user", approved=True)
