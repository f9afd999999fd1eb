"""Make the two policy sources of a bundle: one with the permissions that the bundle requests, and
one that grants the paths in the user's own values.
"""

import os
from collections.abc import Mapping

from corral.errors import PolicyError, SandboxError
from corral.paths.mounts import read_mounts
from corral.paths.native import is_inside
from corral.policy.home_grants import refuse_home
from corral.policy.manifest import Manifest, from_data
from corral.policy.model import Source
from corral.policy.path_grants import Refused
from corral.policy.variables import is_loader_variable, is_secret
from corral.record import replace
from corral.safe_text import printable, shell_word, shown
from corral.servers.bundles import user_values
from corral.servers.bundles.manifest import Bundle
from corral.servers.bundles.user_values import Values

# Variables that contain search paths of runtimes. A bundle may set them to its own directories
# without the user's approval.
SEARCH_PATHS = frozenset({"PYTHONPATH", "NODE_PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"})


def variables(
    bundle: Bundle, values: Values, known: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return the environment variables that the bundle sets, and the names of those variables that
    contain one of the user's sensitive values.
    """
    found = bundle.environment.items()
    environment = {name: user_values.substitute(text, known, values) for name, text in found}
    return environment, secret_names(bundle, values)


def secret_names(bundle: Bundle, values: Values) -> list[str]:
    """Return the names of the variables that contain one of the user's sensitive values."""
    found: list[str] = []
    for name, text in bundle.environment.items():
        used = [
            bundle.settings[key] for key in user_values.find_keys(text) if key in bundle.settings
        ]
        if any(one.sensitive and values.texts[one.key] for one in used):
            if is_loader_variable(name):
                raise SandboxError(
                    f"{bundle.name} puts a secret into {name}, which a bundle may not set"
                )
            found.append(name)
    return found


def find_warnings(bundle: Bundle) -> list[str]:
    keys = [key for word in bundle.arguments for key in user_values.find_keys(word)]
    return [
        f"{bundle.name} takes the secret {shown(key)} as an argument, which other programs can see"
        for key in keys
        if key in bundle.settings and bundle.settings[key].sensitive
    ]


def build_request(
    bundle: Bundle, values: Values, known: Mapping[str, str], *, origin: str
) -> Manifest:
    """Return everything that a bundle requests: the permissions in its `_meta."io.corral"`, the
    variables that it sets, and the default paths of its settings.

    Default paths that do not exist are left out. Variables are left out if they contain one of the
    user's sensitive values, or if they are in SEARCH_PATHS and name only the bundle's own
    directories. The source that `grant_values` returns contains both kinds.
    """
    tree = known["__dirname"]
    environment, secret = variables(bundle, values, known)
    start = Manifest(origin=origin)
    if bundle.request is not None:
        start = replace(from_data({"version": 1, **bundle.request}, origin), command=None)
        start = replace(
            start,
            read=_make_absolute(start.read, tree),
            write=_make_absolute(start.write, tree),
            unix_sockets=_make_absolute(start.unix_sockets, tree),
        )
    paths = [
        user_values.substitute(text, known, values)
        for key, setting in bundle.settings.items()
        if setting.shape in {"directory", "file"} and key not in values.given
        for text in values.texts[key]
    ]
    wanted = [text for text in paths if os.path.exists(text)]
    asked = [
        (name, value)
        for name, value in environment.items()
        if name not in secret and not is_own_path(name, value, tree)
    ]
    return replace(
        start,
        read=(*(start.read or ()), *wanted) if wanted else start.read,
        set_values=(*(start.set_values or ()), *asked) if asked else start.set_values,
    )


def _make_absolute(paths: tuple[str, ...] | None, tree: str) -> tuple[str, ...] | None:
    """Resolve relative paths against the bundle's directory. Absolute paths, and paths that start
    with `~`, stay as they are.
    """
    if paths is None:
        return None
    return tuple(
        path if path.startswith(("~", "/")) else os.path.join(tree, path) for path in paths
    )


def is_own_path(name: str, value: str, tree: str) -> bool:
    parts = map(os.path.normpath, value.split(os.pathsep))
    return name in SEARCH_PATHS and all(is_inside(part, tree) for part in parts)


def _name_setting(key: str) -> str:
    """Return the `corral run` flag for a setting, as a format string with `{}` in place of the
    value. The bundle's author chose the key of the setting, so the key is quoted for a shell.
    """
    word = shell_word(key).replace("{", "{{").replace("}", "}}")
    return f"--config {word}={{}}"


def refuse_homes(bundle: Bundle, values: Values, known: Mapping[str, str]) -> None:
    """Raise an error if the value or the default of a setting for a directory is a home directory.
    The error's hint suggests other directories.
    """
    for key in [key for key, one in bundle.settings.items() if one.shape == "directory"]:
        for text in values.texts[key]:
            path = os.path.realpath(user_values.substitute(text, known, values))
            try:
                refuse_home(path, known["HOME"], read_mounts(), _name_setting(key))
            except Refused as error:
                raise PolicyError(
                    f"{bundle.name}: {shown(key)}: {error}", hint=error.hint
                ) from None


def grant_values(bundle: Bundle, values: Values, known: Mapping[str, str]) -> Source:
    """Return a policy source that grants the paths in the user's own values. The source also
    contains the names of the variables with the user's sensitive values. If the bundle sets a
    variable such as PYTHONPATH to its own directories, the source sets this variable too.
    """
    tree = known["__dirname"]
    environment, secret = variables(bundle, values, known)
    paths = [
        text
        for key, setting in bundle.settings.items()
        if setting.shape in {"directory", "file"} and key in values.given
        for text in values.texts[key]
    ]
    own = [(name, value) for name, value in environment.items() if is_own_path(name, value, tree)]
    manifest = Manifest(
        origin=f"the values for {printable(bundle.name)}",
        read=tuple(paths) or None,
        set_values=tuple(own) or None,
        secret_names=tuple(secret) or None,
    )
    given = [(key, text) for key in sorted(values.given) for text in values.texts[key]]
    return Source(
        manifest=manifest,
        trust="user",
        given_values=tuple(
            text for key, text in given if bundle.settings[key].sensitive or is_secret(key, text)
        ),
    )
